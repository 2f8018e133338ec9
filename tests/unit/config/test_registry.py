"""Tests of the registries, their error messages for unknown names, the public API and the list of commands."""

import dataclasses
import importlib
import pkgutil
import sys
import tomllib

import pytest

import keras_transformer
from keras_transformer.__main__ import COMMANDS
from keras_transformer.config import registry
from keras_transformer.tasks.problem import Problem, load_problem, setting
from keras_transformer.tasks.translation import TranslationProblem
from keras_transformer.utils.errors import UserError

registry.load_catalog()
KINDS = {
    "problem": registry.problems, "hparams": registry.hparams, "model": registry.models, **registry.layers
}  # fmt: skip
ENTRIES = [(kind, name) for kind, entries in KINDS.items() for name, _ in entries.describe()]


@pytest.fixture
def scratch(monkeypatch):
    """Restore the registries after the test."""
    for entries in KINDS.values():
        monkeypatch.setattr(entries, "_entries", dict(entries._entries))
        monkeypatch.setattr(entries, "_descriptions", dict(entries._descriptions))


# Entries


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_entries_have_one_line_descriptions(kind, name):
    description = dict(KINDS[kind].describe())[name]
    assert 10 < len(description) <= 150 and "\n" not in description
    assert description.endswith(".")


@pytest.mark.parametrize(("kind", "name"), [entry for entry in ENTRIES if entry[0] in ("model", *registry.layers)])
def test_locations_resolve_to_classes(kind, name):
    assert isinstance(KINDS[kind].get(name), type)


@pytest.mark.parametrize("name", [name for kind, name in ENTRIES if kind == "problem"])
def test_problems_of_one_direction_have_a_reverse(name):
    problem = registry.problems.get(name)
    if problem.reversed:
        assert not registry.problems.get(problem.corpus).reversed
    elif issubclass(problem, TranslationProblem) and problem.reverse_class:
        reverse = registry.problems.get(f"{name}_rev")
        assert (reverse.name, reverse.corpus, reverse.reversed) == (f"{name}_rev", name, True)
    else:
        assert f"{name}_rev" not in dict(registry.problems.describe())


@pytest.mark.parametrize(
    ("kind", "wrong", "right"),
    [
        ("problem", "multi30k_ned", "multi30k_ende"), ("problem", "revers", "reverse"), ("hparams", "bigg", "big"),
        ("model", "transfromer", "transformer"), ("positions", "sinusoid", "sinusoidal"), ("norm", "prenorm", "pre"),
    ],
)  # fmt: skip
def test_unknown_name_suggests_nearest(kind, wrong, right):
    with pytest.raises(UserError, match=f"unknown {kind} {wrong!r}: did you mean .*{right}"):
        KINDS[kind].get(wrong)


def test_unfamiliar_name_lists_all():
    with pytest.raises(UserError, match="choose one of base, .*big, "):
        registry.hparams.get("qqqqqq")


# Entries that users register


def test_user_problem_is_registered(scratch):
    @keras_transformer.register_problem("mine_ende")
    @dataclasses.dataclass(kw_only=True)
    class Mine(TranslationProblem):
        """My corpus."""

        source, target = "en", "de"
        lines: int = setting(3, "lines", low=1)

        def pairs(self, split):
            return ((f"{split} {i}", str(i)) for i in range(self.lines))

    assert ("mine_ende", "My corpus.") in registry.problems.describe()
    assert list(load_problem("mine_ende", lines=2).examples("test")) == [("test 0", "0"), ("test 1", "1")]
    assert list(load_problem("mine_ende_rev", lines=1).examples("train")) == [("0", "train 0")]
    with pytest.raises(UserError, match="parameter of mine_ende 'line': did you mean lines"):
        load_problem("mine_ende", line=2)


def test_non_translation_problem_has_no_reverse(scratch):
    registry.register_problem("mine")(type("Mine", (Problem,), {"__doc__": "Mine."}))
    with pytest.raises(UserError):
        registry.problems.get("mine_rev")


def test_reverse_may_have_a_second_name(scratch):
    registry.register_problem("mine_ende", reverse="mine_deen")(type("Mine", (TranslationProblem,), {}))
    for name in ("mine_ende_rev", "mine_deen"):  # existing runs may record either name
        reverse = registry.problems.get(name)
        assert (reverse.name, reverse.corpus, reverse.reversed) == (name, "mine_ende", True)


@pytest.mark.parametrize("taken", ["mine_rev", "enim"])
def test_problem_with_taken_reverse_is_not_registered(scratch, taken):
    registry.register_problem(taken)(type("Mine", (Problem,), {}))
    with pytest.raises(ValueError, match=f"{taken}' is registered twice"):
        registry.register_problem("mine", reverse="enim")(type("Mine", (TranslationProblem,), {}))
    assert {"mine", "mine_rev", "enim"} & dict(registry.problems.describe()).keys() == {taken}


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (lambda: None, "problem 'mine' must be a subclass of Problem"),
        (type("Mine", (), {}), "problem 'mine' must be a subclass of Problem"),
        (type("Mine", (Problem,), {"lines": setting(3, "lines")}), "Put @dataclasses.dataclass.* and class Mine"),
    ],
)
def test_register_problem_rejects_non_problems(scratch, problem, said):
    with pytest.raises(UserError, match=said):
        registry.register_problem("mine")(problem)
    assert "mine" not in registry.problems


@pytest.mark.parametrize("reverse", [False, True])
def test_problem_without_output_language_is_rejected(reverse):
    side, other = ("source", "target") if reverse else ("target", "source")
    problem = type("Mine", (TranslationProblem,), {other: "en", "reversed": reverse})()
    with pytest.raises(UserError, match=f"problem 'Mine': class Mine must define {side}, a language code"):
        problem.check_metric("score")


@pytest.mark.parametrize("method", ["pairs", "make_tokenizer", "score"])
def test_problem_with_missing_method_is_rejected(scratch, method):
    methods = {name: lambda self: None for name in ("pairs", "make_tokenizer", "score") if name != method}
    registry.register_problem("mine")(type("Mine", (Problem,), methods))
    with pytest.raises(UserError, match=rf"problem 'mine': class Mine must define {method}\(\)"):
        load_problem("mine")


def test_notebook_cell_may_register_again(scratch):
    def cell(name, module="__main__"):
        return type(name, (TranslationProblem,), {"__module__": module})

    registry.register_problem("mine")(cell("Mine"))
    mended = registry.register_problem("mine")(cell("Mine"))
    assert registry.problems.get("mine") is mended and issubclass(registry.problems.get("mine_rev"), mended)
    for other in (cell("Other"), cell("Mine", module="elsewhere")):
        with pytest.raises(ValueError, match="'mine' is registered twice"):
            registry.register_problem("mine")(other)


def test_user_hparams_are_registered(scratch):
    @keras_transformer.register_hparams("my_tiny")
    def my_tiny():
        """Mine."""
        return keras_transformer.hparams("tiny").replace(num_layers=1)

    assert keras_transformer.hparams("my_tiny", dropout=0.5) == keras_transformer.hparams(
        "tiny", num_layers=1, dropout=0.5
    )


@pytest.mark.parametrize("result", [None, "tiny", keras_transformer.HParams, keras_transformer.TrainOptions()])
def test_user_hparams_must_return_hparams(scratch, result):
    registry.register_hparams("mine")(lambda: result)
    with pytest.raises(UserError, match=r"hparams 'mine': .*\(\) must return HParams, got "):
        keras_transformer.hparams("mine")


def test_user_layer_is_built_into_model(scratch):
    from keras_transformer.layers.residual import PostNorm

    with pytest.raises(UserError, match="unknown norm 'mine'"):
        keras_transformer.hparams("tiny", norm="mine")

    @keras_transformer.register_layer("norm", "mine")
    class Mine(PostNorm):
        """Mine."""

    hparams = keras_transformer.hparams("tiny", norm="mine", num_layers=1, d_model=8, d_ff=8)
    model = keras_transformer.Transformer.from_hparams(hparams, vocab_size=10)
    assert sum(isinstance(layer, Mine) for layer in model._flatten_layers()) == 5


@pytest.mark.parametrize("kind", ["problem", "hparams", "model"])
def test_register_decorator_needs_a_name(kind):
    with pytest.raises(UserError, match=f"{kind} must have a name, got .*Mine.*Write @register_"):
        getattr(registry, f"register_{kind}")(type("Mine", (), {}))


@pytest.mark.parametrize(("kind", "entries"), list(KINDS.items())[1:])
def test_register_rejects_non_callables(scratch, kind, entries):
    register = registry.register_layer(kind, "mine") if kind in registry.layers else getattr(
        registry, f"register_{kind}"
    )("mine")  # fmt: skip
    with pytest.raises(UserError, match=f"{kind} 'mine' must be a class or function, got 3"):
        register(3)
    assert "mine" not in entries


# The public API


@pytest.mark.parametrize("name", keras_transformer.__all__)
def test_public_names_resolve(name):
    assert callable(getattr(keras_transformer, name)) or name == "layers"


def test_dir_lists_public_api_only():
    assert set(dir(keras_transformer)) == {*keras_transformer.__all__, "__version__"}


def test_unknown_attribute_raises_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        keras_transformer.nothing  # noqa: B018


def test_submodules_do_not_shadow_public_functions():
    modules = {module.name for module in pkgutil.iter_modules(keras_transformer.__path__)}
    assert modules & set(keras_transformer.__all__) == {"layers"}


def test_commands_all_have_main():
    for name in COMMANDS:
        module = importlib.import_module(f"keras_transformer.{name}")
        if hasattr(module, "__path__"):  # a package that is also a command
            module = importlib.import_module(f"keras_transformer.{name}.__main__")
        assert module.main


def test_commands_run_by_name(call):
    listed = call("cost", "--hparams=tiny")
    assert call("__main__", "cost", "--hparams=tiny") == listed and listed.status == 0
    call("__main__", "trian").refused("unknown command 'trian'", "train")
    call("__main__", "cost", "--hparams=nothing").refused("unknown hparams 'nothing'")


def test_console_script_runs_commands_by_name(monkeypatch, capsys):
    project = tomllib.loads((registry.PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    monkeypatch.setattr(sys, "argv", ["keras-transformer", "cost", "--hparams=tiny"])
    pkgutil.resolve_name(project["scripts"]["keras-transformer"])()
    assert "floating point operations" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_starts_with_an_example(call, command):
    lines = call("trees" if command == "trees" else command, "--help").succeeded()
    assert f"Example: python -m keras_transformer.{command} --" in "\n".join(lines)


def test_listing_names_all_commands_and_entries(call):
    listed = {line.split()[0] for line in call("__main__").succeeded() if line.startswith("  ")}
    assert listed == {*COMMANDS, *(name for _, name in ENTRIES)}
