"""Tests of HParams: types and ranges of fields, presets with the paper's values, and a check for unused fields."""

import ast
import dataclasses
import inspect
import re
import typing

import pytest
from helpers.errors import complaint

from keras_transformer.cli.arguments import Parser, add_problem_flags, read_problem_flags
from keras_transformer.config import registry
from keras_transformer.config.hparams import HParams, changed_fields, load_hparams, parse_value, setting, validate
from keras_transformer.layers.stack import StackLayer

FIELDS = [field.name for field in dataclasses.fields(HParams)]
registry.load_catalog()
PRESETS = [name for name, _ in registry.hparams.describe()]

# Values copied by hand from the paper: Table 3 (rows base and big), §3.1, §5.1-5.4 and §6.1.
PAPER = {
    "num_layers": (6, 6),
    "d_model": (512, 1024),
    "d_ff": (2048, 4096),
    "num_heads": (8, 16),
    "key_width": (64, 64),
    "value_width": (64, 64),
    "dropout": (0.1, 0.3),
    "attention_dropout": (0.0, 0.0),
    "activation_dropout": (0.0, 0.0),
    "word_dropout": (0.0, 0.0),
    "label_smoothing": (0.1, 0.1),
    "positions": ("sinusoidal", "sinusoidal"),
    "norm": ("post", "post"),
    "encoder_attention": ("full", "full"),
    "learning_rate_scale": (1.0, 1.0),
    "warmup_steps": (4000, 4000),
    "adam_beta_1": (0.9, 0.9),
    "adam_beta_2": (0.98, 0.98),
    "adam_epsilon": (1e-9, 1e-9),
    "batch_tokens": (25_000, 25_000),
    "train_steps": (100_000, 300_000),
    "checkpoint_minutes": (10.0, 10.0),
    "average_last": (5, 20),
    "beam_size": (4, 4),
    "alpha": (0.6, 0.6),
    "extra_length": (50, 50),
}


@pytest.mark.parametrize(("column", "preset"), [(0, "base"), (1, "big")])
def test_base_and_big_have_paper_values(column, preset):
    hparams = load_hparams(preset)
    assert {name: getattr(hparams, name) for name in PAPER} == {name: row[column] for name, row in PAPER.items()}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_frozen(preset):
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_hparams(preset).d_model = 64


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_keep_enough_checkpoints_to_average(preset):
    hparams = load_hparams(preset)
    assert hparams.keep_checkpoints >= hparams.average_last


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("d_model", 64.0, "d_model must be an integer, got 64.0"),
        ("d_model", "64", "d_model must be an integer, got '64'"),
        ("d_model", True, "d_model must be an integer, got True"),
        ("d_model", None, "d_model must be an integer, got None"),
        ("dropout", "0.1", "dropout must be a number, got '0.1'"),
        ("dropout", False, "dropout must be a number, got False"),
        ("norm", 1, "norm must be a string, got 1"),
        ("dropout", float("nan"), "dropout must be from 0 to 0.99, got nan"),
        ("alpha", float("inf"), "alpha must be from 0 to 10, got inf"),
        ("num_layers", 0, "num_layers must be from 1 to 1000, got 0"),
        ("dropout", -0.1, "dropout must be from 0 to 0.99, got -0.1"),
        ("dropout", 1, "dropout must be from 0 to 0.99, got 1"),
        ("seed", -1, "seed must be from 0 to 2147483647, got -1"),
        ("adam_epsilon", 0, "adam_epsilon must be from 1e-30 to 1000000000, got 0"),
        ("d_k", 0, "d_k must be from 1 to 65536, got 0"),
        ("norm", "poste", "unknown norm 'poste': did you mean post or pre?"),
        ("positions", "learnt", "unknown positions 'learnt': did you mean learned?"),
        ("encoder_attention", "xyz", "unknown encoder_attention 'xyz': choose one of additive, full, restricted"),
        ("attention_window", 0, "attention_window must be from 1 to 1000000000, got 0"),
        ("attention_window", 8, "attention_window requires encoder_attention=restricted, got full"),
        ("encoder_attention", "restricted", "encoder_attention=restricted requires attention_window"),
    ],
)
def test_hparams_reject_wrong_values(name, value, said):
    assert said in complaint(HParams, **{name: value})


def test_hparams_convert_int_to_float():
    hparams = HParams(dropout=0)
    assert type(hparams.dropout) is float and hparams == HParams(dropout=0.0)


@dataclasses.dataclass
class Settings:
    count: typing.Optional[int] = setting(None, "number")  # noqa: UP045
    names: list | None = setting(None, "names")


def test_types_of_settings_are_checked():
    validate(Settings(), "mine")
    validate(Settings(3), "mine")
    assert complaint(validate, Settings("3"), "mine") == "mine: count must be an integer, got '3'"
    said = "mine: the type of names must be int, float, str or bool, with or without None"
    assert complaint(validate, Settings(names=["a"]), "mine") == said


def test_num_heads_must_divide_d_model():
    said = complaint(HParams, d_model=100, num_heads=8)
    assert "d_model=100" in said and "num_heads=8" in said


def test_r_drop_requires_some_dropout():
    assert "r_drop=5 requires dropout, but" in complaint(HParams, r_drop=5.0, dropout=0.0)
    assert HParams(r_drop=5.0, dropout=0.0, attention_dropout=0.1).passes == 2 and HParams(dropout=0.0).passes == 1


@pytest.mark.parametrize("given", [{"d_k": 16}, {"d_v": 16}])
def test_one_head_width_does_not_imply_the_other(given):
    assert "must be divisible" in complaint(HParams, d_model=100, num_heads=8, **given)


def test_changed_fields_compares_with_current_preset():
    values = dataclasses.asdict(load_hparams("tiny", dropout=0.2))
    assert changed_fields("tiny", values) == {"dropout": 0.2}
    assert changed_fields(None, values) == values
    # Values that were saved before the field `decode_steps` existed.
    old = {field: value for field, value in values.items() if field != "decode_steps"}
    assert changed_fields("tiny", old) == {"dropout": 0.2, "decode_steps": None}


def test_explicit_head_widths_need_no_division():
    hparams = HParams(d_model=100, num_heads=8, d_k=16, d_v=24)
    assert (hparams.key_width, hparams.value_width) == (16, 24)


def test_sinusoids_require_even_width():
    assert "even" in complaint(HParams, d_model=9, num_heads=3)
    assert HParams(d_model=9, num_heads=3, positions="learned").key_width == 3


def test_unknown_field_suggests_nearest():
    assert "did you mean dropout" in complaint(HParams().replace, dropuot=0.1)
    assert "did you mean warmup_steps" in complaint(load_hparams, "base", warm_up_steps=1)
    assert "did you mean d_model" in complaint(parse_value, HParams, "dmodel", "64", "hparams")


def test_unknown_preset_suggests_nearest():
    assert "unknown hparams 'bse': did you mean base or " in complaint(load_hparams, "bse")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("d_model", "64", 64), ("dropout", "0.2", 0.2), ("dropout", "1e-3", 1e-3), ("dropout", "0", 0.0),
        ("d_k", "none", None), ("d_k", "None", None), ("d_k", "16", 16), ("norm", "pre", "pre"),
    ],
)  # fmt: skip
def test_parse_value_converts_text(name, text, value):
    parsed = parse_value(HParams, name, text, "hparams")
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text"), [("d_model", "64.0"), ("d_model", "none"), ("dropout", "a"), ("d_k", "nine")]
)
def test_parse_value_quotes_invalid_text(name, text):
    assert re.search(f"{name} must be an? .*, got '{text}'", complaint(parse_value, HParams, name, text, "h"))


def parsed(*arguments):
    """Parse command-line flags and return the hparams."""
    parser = Parser("train", "", "")
    add_problem_flags(parser, "copy", "base")
    return read_problem_flags(parser.parse_args(arguments))[1]


@pytest.mark.parametrize("name", FIELDS)
def test_fields_are_flags_and_settings(name):
    default = getattr(HParams(), name)
    values = {"positions": "learned", "norm": "pre", "encoder_attention": "full", "best_metric": "nll"}
    values |= {"activation": "swish", "model": "word_aligned_transformer"}
    values |= {"on_nonfinite": "skip", "clip_norm": "0.5", "ema_decay": "0.5"}
    value = values.get(name) or ("0.25" if type(default) is float else str(2 * (default or 32)))
    # Only restricted attention has a window.
    others = ["--encoder_attention=restricted"] if name == "attention_window" else []
    hparams = parsed(f"--{name}={value}", *others)
    assert hparams == parsed("--set", f"{name}={value}", *others) == parsed(f"--set={name}={value}", *others)
    assert str(getattr(hparams, name)) == value


def test_last_of_two_settings_wins():
    assert parsed("--set=dropout=0.2", "--set=dropout=0.3").dropout == 0.3
    assert parsed("--dropout=0.2", "--dropout=0.3").dropout == 0.3


def names_read_of_hparams():
    """Return the names of all attributes that the package's source code reads from `hparams` or `….hparams`."""
    names = set()
    for path in registry.PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = node.value
                if getattr(owner, "id", getattr(owner, "attr", None)) == "hparams":
                    names.add(node.attr)
    return names


def test_fields_are_all_read():
    # `Transformer` reads the parameters of `StackLayer` by name.
    read = names_read_of_hparams() | inspect.signature(StackLayer).parameters.keys()
    if "decoder_depth" in read:
        read.add("num_decoder_layers")
    if "decoding_interval" in read:
        read.add("decode_steps")
    if "key_width" in read:
        read.add("d_k")
    if "value_width" in read:
        read.add("d_v")
    assert set(FIELDS) - read == set()
