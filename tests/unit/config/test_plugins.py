"""Tests of plug-ins: the example in the documentation, the plug-ins that a run records, and errors in plug-ins."""

import importlib
import io
import json
import py_compile
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.logs import logged_lines
from helpers.paths import ROOT
from helpers.quick import eager_functions

import keras_transformer as kt
from keras_transformer.cli.arguments import Parser
from keras_transformer.config import plugins, registry
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError

PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
SMALL = ("--num_layers=1", "--d_model=16", "--d_ff=32", "--num_heads=2", "--batch_tokens=512", "--warmup_steps=2",
         "--train_steps=3", "--beam_size=1", "--extra_length=3")  # fmt: skip
registry.load_catalog()
BUILT_IN = {one: (dict(one._entries), dict(one._descriptions)) for one in registry.REGISTRIES}

PROBLEM = '''
import keras_transformer as kt

@kt.register_problem("mine")
class Mine(kt.TranslationProblem):
    """Mine."""

    source, target = "en", "de"

    def pairs(self, split):
        return [(f"a {i}", f"b {i}") for i in range(40)]
'''
HPARAMS = '''
import keras_transformer as kt

@kt.register_hparams("NAME")
def function():
    """Mine."""
    return kt.hparams("toy")
'''


@pytest.fixture(autouse=True)
def scratch(monkeypatch, tmp_path):
    """Run each test in a temporary folder and unload all plug-ins afterwards."""
    for one in registry.REGISTRIES:
        monkeypatch.setattr(one, "_entries", dict(one._entries))
        monkeypatch.setattr(one, "_descriptions", dict(one._descriptions))
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # otherwise Python could run a plug-in's old bytecode
    monkeypatch.chdir(tmp_path)
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def write(path, text):
    """Write a plug-in to a file, without the blank line at the start of `text`. Return the path."""
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.removeprefix("\n"), encoding="utf-8")
    return path


def hparams(name):
    """Return the source code of a plug-in that registers a preset with the given name."""
    return HPARAMS.replace("NAME", name)


def complaint(plugin):
    """Load an invalid plug-in and return the message of its `UserError`. Assert that nothing stays registered."""
    before = registry.entries()
    with pytest.raises(UserError) as caught:
        kt.load_plugin(plugin)
    assert registry.entries() == before and not plugins.loaded()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The example of docs/plugins.md


@pytest.fixture
def example():
    """Write the example plug-in of docs/plugins.md to the working directory. Return the commands of the example."""
    (code,) = re.findall(r"```python\n(\"\"\".*?)```", PAGE, flags=re.DOTALL)
    write(re.search(r"Save this file as `(\w+\.py)`", PAGE)[1], code)
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    return commands.splitlines()


def test_page_example_runs_and_resumes(example, call, monkeypatch, tmp_path):
    """Run the commands of the example. Unload all plug-ins before each command, to simulate a new process."""

    def follow(line, *more):
        forget()
        text, _, line = line.rpartition(" | ")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.removeprefix("echo ").encode())))
        _, _, module, *flags = shlex.split(line)
        _, _, command = module.partition(".")
        return call(command or "__main__", *flags, *more).succeeded()

    def run():
        return Run.open("runs/numbers_ende-numbers")

    lists, trains, evaluates, translates = example
    listed = {line.split()[0] for line in follow(lists) if line.startswith("  ")}
    assert {"numbers_ende", "numbers_deen", "numbers_ende_rev", "numbers", "scaled", "capped"} <= listed
    with eager_functions():
        follow(trains, *SMALL)
        config = run().config
        assert config["plugins"] == [str(tmp_path / "numbers_plugin.py")]
        assert (config["hparams"]["model"], config["hparams"]["positions"]) == ("capped", "scaled")
        assert follow(evaluates)[-1].startswith("exact match = ")
        assert len(follow(translates)) == 1
        Path("moved").mkdir()
        shutil.move("numbers_plugin.py", "moved")
        follow(trains.replace("--plugin=", "--plugin=moved/"), *SMALL, "--train_steps=4")
    assert run().config["plugins"] == [str(tmp_path / "moved" / "numbers_plugin.py")]
    assert run().checkpoints.steps()[-1] == 4


def test_page_example_works_from_python(example):
    assert kt.load_plugin("numbers_plugin").words(241) == ("two hundred and forty-one", "zweihunderteinundvierzig")
    problem = kt.problem("numbers_ende", largest=500)
    splits = {split: list(problem.examples(split)) for split in problem.splits}
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 400, "validation": 50, "test": 50}
    assert len({pair for pairs in splits.values() for pair in pairs}) == 500


# Finding a plug-in


def test_plugin_files_of_one_name_do_not_collide():
    for name in ("one", "two"):
        kt.load_plugin(write(f"{name}/plugin.py", hparams(name)))
        assert kt.hparams(name) == kt.hparams("toy")
    assert plugins.loaded() == [str(Path(f"{name}/plugin.py").absolute()) for name in ("one", "two")]


@pytest.mark.parametrize(("first", "second"), [("plugin.py", "folder/../plugin.py"), ("plugin", "plugin")])
def test_plugin_is_loaded_once(first, second):
    write("plugin.py", hparams("mine"))
    Path("folder").mkdir()
    assert kt.load_plugin(first) is kt.load_plugin(second)
    assert len(plugins.loaded()) == 1


def test_changed_plugin_is_not_loaded_again():
    module = kt.load_plugin(path := write("plugin.py", hparams("mine")))
    with logged_lines() as lines:
        assert kt.load_plugin(path) is module and not lines
        assert kt.load_plugin(write(path, hparams("yours"))) is module
    assert lines == [f"plug-in {path} has changed since it was loaded; restart Python to load the new version"]


@pytest.mark.parametrize(
    ("plugin", "recorded"),
    [("package/", "FOLDER"), ("package/__init__.py", "FOLDER"), ("package.part", "package.part")],
)
def test_plugin_package_imports_its_own_files(plugin, recorded):
    write("package/__init__.py", "from . import part\n")
    write("package/part.py", hparams("mine"))
    module = kt.load_plugin(plugin)
    assert getattr(module, "part", module).function() == kt.hparams("mine")
    assert plugins.loaded() == [recorded.replace("FOLDER", str(Path("package").absolute()))]


def test_plugin_imports_a_file_of_its_folder(tmp_path):
    write("elsewhere/beside_it.py", "NAME = 'mine'\n")
    text = HPARAMS.replace("import keras", "import beside_it\nimport keras").replace('"NAME"', "beside_it.NAME")
    kt.load_plugin(write("elsewhere/plugin.py", text))
    assert kt.hparams("mine")


def test_plugin_may_be_imported_before():
    write("plugin_mine.py", hparams("mine"))
    module = importlib.import_module("plugin_mine")
    assert kt.load_plugin("plugin_mine") is module and plugins.loaded() == ["plugin_mine"]


LAYERS = """
import keras
import keras_transformer as kt

@kt.register_layer("encoder_attention", "keras")
class KerasAttention(keras.layers.Layer):
    def __init__(self, d_model, num_heads, d_k, d_v, dropout=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(num_heads, d_model // num_heads)

    def call(self, query, memory, attention_mask=None, training=False):
        mask = attention_mask if attention_mask is None else attention_mask[:, 0]
        return self.attention(query, memory, attention_mask=mask)

@kt.register_layer("positions", "table")
class Table(kt.layers.SinusoidalPositions):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.table = keras.layers.Embedding(self.max_length, self.d_model)

    def encode(self, positions):
        return self.table(positions)
"""


@pytest.mark.parametrize(("layer", "added"), [({"encoder_attention": "keras"}, 4), ({"positions": "table"}, 1)])
def test_model_trains_keras_layers_in_plugin_layers(layer, added):
    kt.load_plugin(write("plugin.py", LAYERS))
    model = kt.Transformer(vocab_size=9, num_layers=1, d_model=16, num_heads=2, **layer)
    plain = kt.Transformer(vocab_size=9, num_layers=1, d_model=16, num_heads=2)
    assert len(model.trainable_weights) == len(plain.trainable_weights) + added
    again = kt.Transformer(vocab_size=9, num_layers=1, d_model=16, num_heads=2, **layer)
    assert [weight.path for weight in again.weights] == [weight.path for weight in model.weights]
    tokens = np.arange(8).reshape(2, 4) + 1
    with eager_functions():
        model.compile(**kt.compile_arguments(model.hparams))
        before = model.get_weights()
        model.train_on_batch((tokens, tokens), tokens)
    for weight, old in zip(model.weights, before):
        if weight.trainable and not weight.path.endswith("bias"):  # the gradient of a key's bias is 0
            assert not np.array_equal(weight, old), weight.path


# Mistakes

WRONG = {
    "x = (\n": "plugin.py:1: SyntaxError: '(' was never closed",
    "\ndef f():\n    return 1 / 0\n\nf()\n": "plugin.py:2: ZeroDivisionError: division by zero",
    "import nowhere_at_all\n": "plugin.py:1: ModuleNotFoundError: No module named 'nowhere_at_all'",
    "raise ValueError('two\\nlines')\n": "plugin.py:1: ValueError: two lines",
    "import sys\nsys.exit('usage')\n": "plugin.py:2: SystemExit: usage",
    hparams("base"): "plugin.py:3: ValueError: hparams 'base' is registered twice; choose another name",
    PROBLEM.replace("mine", "copy"): "plugin.py:3: ValueError: problem 'copy' is registered twice",
    "import keras_transformer as kt\nkt.register_layer('norms', 'x')\n": "plugin.py:2: unknown layer kind 'norms'",
    "import keras_transformer as kt\nkt.register_model('x')(3)\n": "plugin.py:2: model 'x' must be a class or function",
    "import keras_transformer as kt\nkt.HParams(norm='x')\n": "plugin.py:2: unknown norm 'x'",
}


@pytest.mark.parametrize("plugin", ["plugin.py", "plugin"])
@pytest.mark.parametrize(("text", "said"), WRONG.items())
def test_plugin_error_names_its_line_and_can_be_fixed(tmp_path, text, said, plugin):
    write("plugin.py", (hparams("mine").strip() + "\n" if "register" not in text else "") + text.removeprefix("\n"))
    before = 6 if "register" not in text else 0
    said = re.sub(r":(\d+):", lambda line: f":{int(line[1]) + before}:", said, count=1)
    assert complaint(plugin).startswith(f"plug-in {tmp_path}/{said}")
    write("plugin.py", hparams("mine"))
    kt.load_plugin(plugin)
    assert kt.hparams("mine")


def test_failing_plugin_unloads_nested_plugins(tmp_path):
    write("inner.py", hparams("inner"))
    write("plugin.py", "import keras_transformer as kt\nkt.load_plugin('inner.py')\n1 / 0\n")
    assert "plugin.py:3: ZeroDivisionError" in complaint("plugin.py")
    kt.load_plugin("inner.py")
    assert kt.hparams("inner")


@pytest.mark.parametrize(
    ("plugin", "files", "wrong"),
    [
        ("outer", ["outer.py"], "import keras_transformer\n"),  # registers nothing
        ("outer.py", ["inner.py", "outer.py"], "import inner\n1 / 0\n"),
        ("outer.py", ["inner.py", "outer.py"], "import keras_transformer as kt\nkt.load_plugin('inner')\n1 / 0\n"),
        ("outer", ["outer/inner.py", "outer/__init__.py"], "from . import inner\n1 / 0\n"),
    ],
)
def test_fixed_plugin_registers_everything(plugin, files, wrong):
    for file in files:
        write(file, hparams(Path(file).stem))
    right = wrong.replace("1 / 0\n", "") + hparams("outer")
    write(files[-1], wrong)
    complaint(plugin)
    write(files[-1], right)
    kt.load_plugin(plugin)
    assert kt.hparams("outer") and kt.hparams(Path(files[0]).stem.replace("__init__", "outer"))


@pytest.mark.parametrize(
    "plugin", ["", "nowhere", "nowhere.py", "a/nowhere", "a.b.nowhere", "..", "empty/", "empty.nowhere", "no module"]
)
def test_missing_plugin_is_named(tmp_path, plugin):
    Path("empty").mkdir()
    said = complaint(plugin)
    assert said.startswith(f"plug-in {plugin!r} does not exist: ") and str(tmp_path) in said


@pytest.mark.parametrize("plugin", ["abc", "json.decoder", "empty", "nothing.py"])
def test_plugin_without_registrations_is_rejected(tmp_path, plugin):
    Path("empty").mkdir()
    write("nothing.py", "import keras_transformer\n")
    assert "must register a problem, hparams, a layer or a model, but registers nothing" in complaint(plugin)


def test_plugin_must_be_a_python_file(tmp_path):
    write("notes.txt", "notes")
    assert complaint("notes.txt") == f"{tmp_path}/notes.txt is not a Python file"


def test_commands_reject_wrong_plugin(call):
    write("plugin.py", "1 / 0\n")
    call("prepare", "--plugin=plugin.py").refused("error: plug-in /")
    call("prepare", "--plugin=nowhere.py", "--problem=copy").refused("plug-in 'nowhere.py' does not exist")
    assert not Path("data").exists()


@pytest.mark.parametrize(
    ("line", "error", "note"),
    [
        ('raise ValueError("two\\nlines")', ValueError, "ValueError: two lines"),
        (r'raise ValueError("\x1b[1mbold\x1b[0m")', ValueError, "ValueError: bold"),
        ('open("nowhere")', OSError, "FileNotFoundError: [Errno 2] No such file or directory: 'nowhere'"),
    ],
)
def test_later_plugin_exception_ends_with_its_line(tmp_path, call, line, error, note):
    write("plugin.py", PROBLEM.replace("return", f"{line}\n        return"))
    with pytest.raises(error) as caught:
        call("prepare", "--plugin=plugin.py", "--problem=mine")
    assert caught.value.__notes__[-1] == f"error: plug-in {tmp_path}/plugin.py:10: {note}"


def test_exception_elsewhere_names_no_plugin():
    with pytest.raises(ZeroDivisionError) as caught, plugins.located_errors():
        1 / 0  # noqa: B018
    assert not hasattr(caught.value, "__notes__")


# The plug-ins of a run


def forget():
    """Unload all plug-ins."""
    for entries, (built_in, descriptions) in BUILT_IN.items():
        entries._entries, entries._descriptions = dict(built_in), dict(descriptions)
    plugins._loaded.clear()


@pytest.fixture
def run():
    """Directory of an untrained run that uses plugin.py. The plug-in itself is no longer loaded."""
    kt.load_plugin(write("plugin.py", PROBLEM + hparams("my_hparams")))
    problem = kt.problem("mine", vocab_size=20).prepare()
    Run.configure("run", problem, "my_hparams", kt.hparams("my_hparams")).create()
    forget()
    return Path("run")


def open_run(*flags):
    """Open the run as `evaluate` does with these flags. Return the loaded plug-ins."""
    Parser("evaluate", "", "").parse_args(flags)
    assert Run.open("run").problem.name == "mine"
    return plugins.loaded()


def test_run_opens_with_its_plugins(run, tmp_path):
    assert open_run() == Run.open("run").config["plugins"] == [str(tmp_path / "plugin.py")]


def test_run_names_missing_plugin(run, tmp_path, call):
    Path("plugin.py").unlink()
    said = f"plug-in '{tmp_path}/plugin.py' of the run run is missing", "--plugin=MODULE_OR_PATH"
    call("average", "--run=run").refused(*said)


@pytest.mark.parametrize("move", [shutil.move, shutil.copy])
def test_given_plugin_replaces_recorded_one(run, tmp_path, move):
    Path("moved").mkdir()
    move("plugin.py", "moved/plugin.py")
    assert open_run("--plugin=moved/plugin.py") == [str(tmp_path / "moved" / "plugin.py")]


def test_given_plugin_with_other_names_does_not_replace(run, tmp_path):
    write("other.py", hparams("my_other"))
    assert open_run("--plugin=other.py") == [str(tmp_path / "other.py"), str(tmp_path / "plugin.py")]


def test_run_asks_for_the_plugin_that_is_not_given(run, call):
    write("plugin.py", PROBLEM)
    write("other.py", hparams("my_hparams"))
    config = json.loads(Path("run/config.json").read_text())
    Path("run/config.json").write_text(json.dumps({**config, "plugins": ["plugin", "other"]}))
    call("average", "--run=run", "--plugin=plugin").refused("the plug-in 'other' of the run", "then add --plugin=other")


@pytest.mark.parametrize("move", [shutil.move, shutil.copy])
@pytest.mark.parametrize("moved", ["plugin.py", "other.py"])
def test_one_of_two_plugins_may_move(run, tmp_path, move, moved):
    code = Path("plugin.py").read_text()
    write("plugin.py", code.replace(hparams("my_hparams"), ""))
    write("other.py", hparams("my_hparams"))
    config = json.loads(Path("run/config.json").read_text())
    recorded = [str(tmp_path / name) for name in sorted(["plugin.py", "other.py"], key=moved.__eq__)]
    Path("run/config.json").write_text(json.dumps({**config, "plugins": recorded}))
    Path("new").mkdir()
    move(moved, f"new/{moved}")
    assert open_run(f"--plugin=new/{moved}") == [str(tmp_path / "new" / moved), recorded[0]]


@pytest.mark.parametrize(
    "recorded",
    ["plugin.py", "./plugin.py", "plugin", "package", "package.part", "~/plugin.py", "~", "compiled", "compiled.part",
     "/proc/self/cwd/plugin.py"],
)  # fmt: skip
def test_run_does_not_load_files_of_the_working_directory(run, call, recorded):
    write("package/__init__.py", "raise SystemExit('was run')\n")
    py_compile.compile("package/__init__.py", "compiled.pyc")
    config = json.loads(Path("run/config.json").read_text())
    Path("run/config.json").write_text(json.dumps({**config, "plugins": [recorded]}))
    call("average", "--run=run").refused(f"the plug-in '{recorded}' of the run run may be a file in", "--plugin=")
    assert open_run("--plugin=plugin.py")
