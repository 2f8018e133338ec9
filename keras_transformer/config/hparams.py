"""Hyperparameters of a model and its training, as a frozen dataclass with validation."""

import dataclasses
import functools
import math
import os
import types
import typing

from keras_transformer.config import registry
from keras_transformer.utils.errors import UserError, unknown

MOST = 10**9
"""Default maximum of a numeric setting. It fits in int32."""

TYPE_NAMES = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def setting(default=dataclasses.MISSING, doc="", low=None, high=MOST, choices=None, is_path=False, of_corpus=True):
    """Return a dataclass field with a description and constraints on its value.

    Args:
        default: Default value.
        doc: Description for `--help`, one line with the unit.
        low: Minimum of a numeric value, or None for no minimum.
        high: Maximum of a numeric value.
        choices: Sequence of accepted values, or a `Registry` whose names are accepted.
        is_path: Whether the value is a path. `--set` expands `~` in paths.
        of_corpus: Whether the prepared corpus depends on the value. Only for fields of problems.
    """
    metadata = {
        "doc": doc, "low": low, "high": high, "choices": choices, "is_path": is_path, "of_corpus": of_corpus
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HParams:
    """Hyperparameters. The defaults describe the paper's base model.

    A preset in `hparams/` is a registered set of values. `replace` and `--set` change individual fields.

    Raises:
        UserError: A value has the wrong type or is out of range.
    """

    # The model (§3)
    model: str = setting("transformer", "registered model", choices=registry.models)
    num_layers: int = setting(6, "number of layers N in the encoder and in the decoder (§3.1)", low=1, high=1000)
    num_decoder_layers: int | None = setting(
        None, "number of decoder layers, none for the same as num_layers, as in the paper", low=1, high=1000
    )
    d_model: int = setting(512, "width of the layers' outputs (§3.1)", low=2, high=65_536)
    d_ff: int = setting(2048, "inner width of the feed-forward layers (§3.3)", low=1, high=1_048_576)
    activation: str = setting(
        "relu", "activation of the feed-forward layers (§3.3), relu in the paper", choices=("relu", "swish", "gelu")
    )
    num_heads: int = setting(8, "number of attention heads h (§3.2.2)", low=1, high=1024)
    d_k: int | None = setting(
        None, "width of a head's queries and keys, none for d_model / num_heads", low=1, high=65_536
    )
    d_v: int | None = setting(None, "width of a head's values, none for d_model / num_heads", low=1, high=65_536)
    positions: str = setting("sinusoidal", "positional encoding (§3.5)", choices=registry.positions)
    norm: str = setting("post", "placement of layer normalization (§3.1)", choices=registry.norms)
    encoder_attention: str = setting("full", "self-attention of the encoder", choices=registry.attentions)
    attention_window: int | None = setting(
        None, "number of positions r that a position attends to with encoder_attention=restricted (§4)", low=1
    )
    # Regularization (§5.4)
    dropout: float = setting(0.1, "dropout rate of sublayer outputs and embeddings (§5.4)", low=0, high=0.99)
    attention_dropout: float = setting(0.0, "dropout rate of attention weights (0 in the paper)", low=0, high=0.99)
    activation_dropout: float = setting(
        0.0, "dropout rate inside the feed-forward layers (0 in the paper)", low=0, high=0.99
    )
    word_dropout: float = setting(
        0.0, "fraction of source tokens replaced by unknown tokens in training (0 in the paper)", low=0, high=0.99
    )
    label_smoothing: float = setting(
        0.1, "probability ε that label smoothing spreads over the vocabulary (§5.4)", low=0, high=0.99
    )
    r_drop: float = setting(
        0.0,
        "weight α of R-Drop, which doubles the passes per update, 0 to disable it (0 in the paper)",
        low=0,
        high=100,
    )
    # The optimizer (§5.3)
    learning_rate_scale: float = setting(1.0, "factor of the paper's learning rate (§5.3)", low=1e-30, high=1000)
    warmup_steps: int = setting(4000, "updates of linear warmup (§5.3)", low=1)
    adam_beta_1: float = setting(0.9, "decay rate β₁ of Adam's first moment (§5.3)", low=0, high=0.999999)
    adam_beta_2: float = setting(0.98, "decay rate β₂ of Adam's second moment (§5.3)", low=0, high=0.9999999)
    adam_epsilon: float = setting(1e-9, "constant ε in Adam's denominator (§5.3)", low=1e-30)
    clip_norm: float | None = setting(
        None, "maximum global gradient norm, none to disable clipping, as in the paper", low=1e-9
    )
    ema_decay: float | None = setting(
        None, "decay rate of the moving average of the weights in the checkpoint ema, none to disable it",
        low=0, high=0.999999,
    )  # fmt: skip
    # Batches and the run (§5.1, §5.2)
    batch_tokens: int = setting(
        25000, "maximum number of tokens per update on each side, padding included (§5.1)", low=1
    )
    max_length: int = setting(256, "maximum length of a training source or target, in tokens including EOS", low=1)
    max_shapes: int = setting(
        24, "maximum number of batch shapes (with JAX or XLA, each requires a compilation)", low=1, high=1000
    )
    train_steps: int = setting(100_000, "number of updates", low=1)
    seed: int = setting(1, "seed of initial weights, data order and dropout", low=0, high=2**31 - 1)
    on_nonfinite: str = setting(
        "stop", "reaction to a non-finite loss or gradient: stop, or skip the update", choices=("stop", "skip")
    )
    max_skipped: int = setting(10, "maximum number of updates to skip with on_nonfinite=skip", low=1, high=100)
    # Evaluation and checkpoints (§6.1)
    eval_steps: int = setting(1000, "updates between evaluations", low=1)
    decode_steps: int | None = setting(
        None, "updates between evaluations that also decode, none to decode in all of them (ignored unless best_metric "
        "is nll or loss)", low=1,
    )  # fmt: skip
    checkpoint_steps: int = setting(1000, "updates between checkpoints", low=1)
    checkpoint_minutes: float = setting(10.0, "maximum time in minutes between checkpoints, 0 for no limit", low=0)
    best_metric: str = setting(
        "score", "metric of the best checkpoint: score of the problem, bleu or chrf of translations, nll or loss",
        choices=("score", "bleu", "chrf", "nll", "loss"),
    )  # fmt: skip
    patience: int | None = setting(
        None, "evaluations without improvement before training stops, none to disable early stopping", low=1
    )
    keep_checkpoints: int = setting(5, "number of latest checkpoints kept in addition to the best", low=1)
    average_last: int = setting(5, "maximum number of checkpoints to average, up to keep_checkpoints", low=1)
    # Decoding (§6.1)
    beam_size: int = setting(4, "number of beams per sentence", low=1, high=1000)
    alpha: float = setting(0.6, "exponent α of the length penalty", low=0, high=10)
    extra_length: int = setting(50, "maximum number of target tokens beyond the source length", low=1, high=10_000)

    def __post_init__(self):
        validate(self, "hparams")
        if (self.d_k is None or self.d_v is None) and self.d_model % self.num_heads:
            raise UserError(
                f"hparams: d_model must be divisible by num_heads, got d_model={self.d_model} and "
                f"num_heads={self.num_heads}. Change one of them, or set d_k and d_v."
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise UserError(f"hparams: d_model must be even for sinusoidal positions, got {self.d_model}")
        if self.r_drop and not (self.dropout or self.attention_dropout or self.activation_dropout):
            raise UserError(
                f"hparams: r_drop={self.r_drop:g} requires dropout, but dropout, attention_dropout and "
                "activation_dropout are all 0. Raise one of them, or set r_drop=0."
            )
        if self.encoder_attention == "restricted" and self.attention_window is None:
            raise UserError(
                "hparams: encoder_attention=restricted requires attention_window. Set attention_window, e.g. to 32."
            )
        # Skip this check for plug-ins, whose attention layers may also use `attention_window`.
        if self.encoder_attention in ("full", "additive") and self.attention_window is not None:
            raise UserError(
                f"hparams: attention_window requires encoder_attention=restricted, got {self.encoder_attention}. "
                "Set encoder_attention=restricted, or omit attention_window."
            )

    @property
    def passes(self) -> int:
        """Number of forward passes per update: 2 with R-Drop, otherwise 1."""
        return 2 if self.r_drop else 1

    @property
    def decoding_interval(self) -> int:
        """Number of updates between evaluations that also decode the validation split.

        The first evaluation at or after each multiple of this number decodes.
        """
        return self.decode_steps if self.decode_steps and self.best_metric in ("nll", "loss") else self.eval_steps

    @property
    def decoder_depth(self) -> int:
        """Number of layers of the decoder."""
        return self.num_decoder_layers or self.num_layers

    @property
    def key_width(self) -> int:
        """Width of a head's queries and keys."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """Width of a head's values."""
        return self.d_v or self.d_model // self.num_heads

    def replace(self, **changes: typing.Any) -> "HParams":
        """Return a copy with some fields changed.

        Raises:
            UserError: A field is unknown, or its value is invalid.
        """
        names = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in names:
                raise unknown("hparams field", name, names)
        return dataclasses.replace(self, **changes)


def load_hparams(name: str, **changes: typing.Any) -> HParams:
    """Return the `HParams` registered as `name`, with some fields changed.

    Raises:
        UserError: The name or a field is unknown, a value is invalid, or the registered function does not return
            `HParams`.
    """
    registry.load_catalog()
    function = registry.hparams.get(name)
    preset = function()
    if not isinstance(preset, HParams):
        raise UserError(f"hparams {name!r}: {function.__name__}() must return HParams, got {preset!r}")
    return preset.replace(**changes)


def changed_fields(preset, values):
    """Return {field: value} for the hparams that differ from a preset.

    Args:
        preset: Name of the preset, or None to return all fields.
        values: {field: value}. Missing fields have their defaults.
    """
    values = {**dataclasses.asdict(HParams()), **values}
    preset_values = dataclasses.asdict(load_hparams(preset)) if preset else {}
    return {field: value for field, value in values.items() if not preset or value != preset_values[field]}


@functools.cache
def field_types(settings_class):
    """Return {name: (type without None, whether None is allowed)} for the fields of a dataclass."""
    result = {}
    for name, hint in typing.get_type_hints(settings_class).items():
        is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        options = set(typing.get_args(hint)) if is_union else {hint}
        result[name] = (next(iter(options - {types.NoneType})), types.NoneType in options)
    return {field.name: result[field.name] for field in dataclasses.fields(settings_class)}


def validate(settings, owner):
    """Check the fields of a dataclass that were made with `setting`, and convert integers in float fields to floats.

    Args:
        settings: Instance of the dataclass.
        owner: Start of error messages, such as "hparams".

    Raises:
        UserError: A value has the wrong type or is out of range.
    """
    kinds = field_types(type(settings))
    for field in dataclasses.fields(settings):
        name, metadata, value = field.name, field.metadata, getattr(settings, field.name)
        kind, optional = kinds[name]
        if "doc" not in metadata or (value is None and optional):
            continue
        if kind is float and type(value) is int:
            value = float(value)
            object.__setattr__(settings, name, value)
        if kind not in TYPE_NAMES:
            raise UserError(f"{owner}: the type of {name} must be int, float, str or bool, with or without None")
        if type(value) is not kind:
            raise UserError(f"{owner}: {name} must be {TYPE_NAMES[kind]}, got {value!r}")
        choices, high = metadata["choices"], metadata["high"]
        low = -math.inf if metadata["low"] is None else metadata["low"]
        if isinstance(choices, registry.Registry):
            choices.check(value)
        elif choices is not None and value not in choices:
            raise unknown(name, value, choices)
        if kind in (int, float) and not low <= value <= high:  # false for NaN
            raise UserError(f"{owner}: {name} must be from {low} to {high}, got {value}")


def upper_bound(name):
    """Return the maximum of a numeric field of `HParams`."""
    return HParams.__dataclass_fields__[name].metadata["high"]


def parse_value(settings_class, name, text, owner):
    """Parse the text of a field, as in `--set NAME=TEXT`, and return its value.

    Args:
        settings_class: Dataclass with fields made with `setting`.
        name: Name of the field.
        text: The value as text; "none" for None.
        owner: Start of error messages, such as "hparams".

    Raises:
        UserError: The field is unknown, or the text is empty or cannot be converted to the field's type.
    """
    fields = {field.name: field for field in dataclasses.fields(settings_class) if "doc" in field.metadata}
    if name not in fields:
        raise unknown(f"{owner} field", name, fields)
    kind, optional = field_types(settings_class)[name]
    if optional and text.lower() == "none":
        return None
    if not text.strip():
        raise UserError(f"{owner}: {name} must not be empty")
    if fields[name].metadata["is_path"]:
        return os.path.expanduser(text)
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        raise UserError(f"{owner}: {name} must be {TYPE_NAMES[kind]}, got {text!r}") from None
