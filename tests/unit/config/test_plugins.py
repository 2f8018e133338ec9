"""Plug-ins: the example of the documentation as a user runs it, what a run remembers, and what a mistake leaves."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT

import keras_transformer as kt
from keras_transformer import plugins, registry
from keras_transformer.errors import UserError
from keras_transformer.flags import Parser, run_command
from keras_transformer.runs.directory import Run

PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
SMALL = ("--num_layers=1", "--d_model=16", "--d_ff=32", "--num_heads=2", "--batch_tokens=512", "--warmup_steps=2",
         "--train_steps=3", "--beam_size=1", "--extra_length=3")  # fmt: skip
KINDS = (registry.problems, registry.hparams, registry.models, *registry.layers.values())

PROBLEM = '''
import keras_transformer as kt

@kt.register_problem("mine")
class Mine(kt.TranslationProblem):
    """Mine."""

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


def names():
    """Returns all registered names."""
    return [dict(entries.describe()).keys() for entries in KINDS]


@pytest.fixture(autouse=True)
def scratch(monkeypatch, tmp_path):
    """Works in a temporary folder; afterwards no plug-in was ever loaded."""
    registry.load_catalog()
    for entries in KINDS:
        monkeypatch.setattr(entries, "_entries", dict(entries._entries))
        monkeypatch.setattr(entries, "_descriptions", dict(entries._descriptions))
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file mended within a second looks the same
    monkeypatch.chdir(tmp_path)
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def write(path, text):
    """Writes a plug-in, without the blank line that its text begins with; returns its path."""
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.removeprefix("\n"), encoding="utf-8")
    return path


def hparams(name):
    """Returns the text of a plug-in that registers hparams."""
    return HPARAMS.replace("NAME", name)


def complaint(plugin):
    """Returns the sentence of the `UserError` that loading raises, and asserts that nothing is left of it."""
    before, path = names(), list(sys.path)
    with pytest.raises(UserError) as caught:
        kt.load_plugin(plugin)
    assert names() == before and sys.path == path and not plugins.loaded()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def python(*arguments, status=0, input=None):
    """Runs Python in the working directory with this checkout on its path, where a user would have it installed.

    Returns:
        The lines of stdout, or of stderr where a `status` other than 0 is expected.
    """
    environment = {"PYTHONPATH": str(registry.PACKAGE.parent), "PATH": "/usr/bin:/bin", "HOME": os.getcwd()}
    environment |= {name: os.environ[name] for name in ("KERAS_BACKEND",) if name in os.environ}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, encoding="utf-8", input=input
    )
    assert done.returncode == status and (status or not done.stderr), done.stderr
    return (done.stderr if status else done.stdout).splitlines()


@pytest.fixture
def call(monkeypatch, capsys):
    """Runs a command in this process, which is quicker; returns its status and stderr."""

    def call(command, *arguments):
        monkeypatch.setattr(sys, "argv", [command, *map(str, arguments)])
        capsys.readouterr()
        try:
            run_command(importlib.import_module(f"keras_transformer.{command}").main)
        except SystemExit as end:
            return end.code, capsys.readouterr().err
        return 0, capsys.readouterr().err

    return call


# The example of docs/plugins.md


@pytest.fixture
def example():
    """The page's plug-in in the working directory; its commands."""
    (code,) = re.findall(r"```python\n(\"\"\".*?)```", PAGE, flags=re.DOTALL)
    write(re.search(r"`(\w+\.py)`, anywhere", PAGE)[1], code)
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    return commands.splitlines()


def follow(line, *more):
    """Runs a line of the page's shell block with more flags."""
    said, _, line = line.rpartition(" | ")
    return python(*line.removeprefix("python ").split(), *more, input=said.removeprefix("echo ") or None)


def test_the_example_of_the_page_runs(example):
    lists, trains, evaluates, translates = example
    listed = {line.split()[0] for line in follow(lists) if line.startswith("  ")}
    assert {"numbers_ende", "numbers_deen", "numbers_ende_rev", "numbers", "scaled", "capped"} <= listed
    follow(trains, *SMALL)
    config = Run.open("runs/numbers_ende-numbers").config
    assert config["plugins"] == [str(Path("numbers_plugin.py").absolute())]
    assert (config["model"], config["hparams"]["positions"]) == ("capped", "scaled")
    assert follow(evaluates)[-1].startswith("exact match = ")
    assert len(follow(translates)) == 1


def test_the_example_runs_by_its_name(example):
    """Two processes; the second runs two commands, since its start is what takes the time."""
    follow(example[1].replace("numbers_plugin.py", "numbers_plugin"), *SMALL)
    run = "--run=runs/numbers_ende-numbers"
    assert json.loads(Path("runs/numbers_ende-numbers/config.json").read_text())["plugins"] == ["numbers_plugin"]
    Path("lines.txt").write_text("two hundred and one\n")
    code = f"""from keras_transformer import evaluate, translate
evaluate.main(["{run}"]), translate.main(["{run}", "--input=lines.txt"])"""
    *_, evaluation, _ = python("-c", code)  # the last line is the translation, which may be empty as yet
    assert evaluation.startswith("exact match = ")


def test_the_example_from_python(example):
    assert kt.load_plugin("numbers_plugin").words(241) == ("two hundred and forty-one", "zweihunderteinundvierzig")
    problem = kt.problem("numbers_ende", largest=500)
    splits = {split: list(problem.examples(split)) for split in problem.splits}
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 400, "validation": 50, "test": 50}
    assert len({pair for pairs in splits.values() for pair in pairs}) == 500


# How it is found


def test_files_of_one_name_do_not_collide():
    for name in ("one", "two"):
        module = kt.load_plugin(write(f"{name}/plugin.py", hparams(name)))
        assert kt.hparams(name) == kt.hparams("toy") and module.__name__ in sys.modules
    assert plugins.loaded() == [str(Path(f"{name}/plugin.py").absolute()) for name in ("one", "two")]


@pytest.mark.parametrize("first", ["plugin.py", "plugin", "./plugin.py"])
@pytest.mark.parametrize("second", ["plugin.py", "plugin", "folder/../plugin.py"])
def test_the_same_plugin_is_loaded_once(first, second):
    write("plugin.py", hparams("mine"))
    Path("folder").mkdir()
    assert kt.load_plugin(first) is kt.load_plugin(second)
    assert len(plugins.loaded()) == 1


@pytest.mark.parametrize("plugin", ["package", "package/", "package/__init__.py"])
def test_a_folder_imports_its_own_files(plugin):
    write("package/__init__.py", "from . import part\n")
    write("package/part.py", hparams("mine"))
    assert kt.load_plugin(plugin).part.function() == kt.hparams("mine")
    assert plugins.loaded() == [str(Path("package").absolute())]


def test_a_module_of_a_package():
    write("package/__init__.py", "")
    write("package/part.py", hparams("mine"))
    assert kt.load_plugin("package.part").__name__ == plugins.loaded()[0] == "package.part"
    assert kt.hparams("mine")


def test_a_file_beside_it_is_found(tmp_path):
    write("elsewhere/beside_it.py", "NAME = 'mine'\n")
    text = HPARAMS.replace("import keras", "import beside_it\nimport keras").replace('"NAME"', "beside_it.NAME")
    kt.load_plugin(write("elsewhere/plugin.py", text))
    assert kt.hparams("mine")


def test_a_plugin_without_keras_leaves_a_command_quick():
    write("plugin.py", hparams("mine"))
    code = "import sys; import keras_transformer as kt; kt.load_plugin('plugin.py'); print('keras' in sys.modules)"
    assert python("-c", code) == ["False"]


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
def test_a_mistake_is_one_sentence_with_its_line_and_can_be_mended(tmp_path, text, said, plugin):
    write("plugin.py", (hparams("mine").strip() + "\n" if "register" not in text else "") + text.removeprefix("\n"))
    before = 6 if "register" not in text else 0
    said = re.sub(r":(\d+):", lambda line: f":{int(line[1]) + before}:", said, count=1)
    assert complaint(plugin).startswith(f"plug-in {tmp_path}/{said}")
    write("plugin.py", hparams("mine"))
    kt.load_plugin(plugin)
    assert kt.hparams("mine")


def test_a_mistake_beside_it_can_be_mended(tmp_path):
    write("plugin.py", "import beside_it\n" + HPARAMS.replace('"NAME"', "beside_it.NAME"))
    write("beside_it.py", "NAME = 'base'\n")
    assert "plugin.py:5: ValueError: hparams 'base'" in complaint("plugin.py")
    write("beside_it.py", "NAME = 'mine'\n")
    kt.load_plugin("plugin.py")
    assert kt.hparams("mine")


def test_a_plugin_that_fails_takes_out_those_that_it_loaded(tmp_path):
    write("inner.py", hparams("inner"))
    write("plugin.py", "import keras_transformer as kt\nkt.load_plugin('inner.py')\n1 / 0\n")
    assert "plugin.py:3: ZeroDivisionError" in complaint("plugin.py")
    kt.load_plugin("inner.py")
    assert kt.hparams("inner")


@pytest.mark.parametrize(
    "plugin", ["", "nowhere", "nowhere.py", "a/nowhere", "a.b.nowhere", "..", "empty", "empty.nowhere", "no module"]
)
def test_a_plugin_that_does_not_exist_is_named(tmp_path, plugin):
    Path("empty").mkdir()
    said = complaint(plugin)
    assert said.startswith(f"there is no plug-in {plugin!r}: ") and str(tmp_path) in said


def test_what_is_no_python_is_said(tmp_path):
    write("notes.txt", "notes")
    assert complaint("notes.txt") == f"{tmp_path}/notes.txt is not a Python file"


def test_a_command_ends_with_the_sentence(call):
    write("plugin.py", "1 / 0\n")
    status, err = call("prepare", "--plugin=plugin.py")
    assert status == 2 and err.startswith("error: plug-in /") and err.count("\n") == 1
    status, err = call("prepare", "--plugin=nowhere.py", "--problem=copy")
    assert status == 2 and "there is no plug-in 'nowhere.py'" in err and not Path("data").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('raise ValueError("two\\nlines")', "ValueError: two lines"),
        ('open("nowhere")', "FileNotFoundError: [Errno 2] No such file or directory: 'nowhere'"),
    ],
)
def test_an_exception_later_on_keeps_its_traceback_and_says_where(tmp_path, line, said):
    write("plugin.py", PROBLEM.replace("return", f"{line}\n        return"))
    *lines, last = python("-m", "keras_transformer.prepare", "--plugin=plugin.py", "--problem=mine", status=1)
    assert lines[0] == "Traceback (most recent call last):"
    assert last == f"error: plug-in {tmp_path}/plugin.py:8: {said}"


def test_an_exception_of_the_projects_own_says_nothing_of_plugins():
    with pytest.raises(ZeroDivisionError) as caught, plugins.located_errors():
        1 / 0  # noqa: B018
    assert not hasattr(caught.value, "__notes__")


# What a run remembers


def train(call, *more):
    """Trains for a few updates in the directory run."""
    flags = ("--problem=mine", "--hparams=my_hparams", "--set=problem.vocab_size=20", "--output_dir=run")
    assert call("train", *flags, *SMALL, *more) == (0, "")


def forget():
    """Makes this process as if no plug-in had been loaded."""
    for entries in KINDS:
        for name in [name for name in entries._entries if name.startswith(("mine", "my_"))]:
            del entries._entries[name], entries._descriptions[name]
    plugins._loaded.clear()


@pytest.fixture
def run():
    """The directory of a run of plugin.py, not trained yet; now no plug-in is loaded."""
    kt.load_plugin(write("plugin.py", PROBLEM + hparams("my_hparams")))
    problem = kt.problem("mine", vocab_size=20).prepare()
    Run.planned("run", problem, "transformer", "my_hparams", kt.hparams("my_hparams")).create()
    forget()
    return Path("run")


def open_run(*flags):
    """Opens the run as a later command does that has these flags; returns the plug-ins that are loaded then."""
    Parser("evaluate", "", "").parse_args(flags)
    assert Run.open("run").problem.name == "mine"
    return plugins.loaded()


def test_later_commands_and_resumed_training(tmp_path, call):
    write("plugin.py", PROBLEM + hparams("my_hparams"))
    train(call, "--plugin=plugin.py")
    forget()
    Path("lines.txt").write_text("a 1\n")
    assert call("translate", "--run=run", "--input=lines.txt", "--output=out.txt") == (0, "")
    assert len(Path("out.txt").read_text().splitlines()) == 1
    forget()
    Path("moved").mkdir()
    shutil.move("plugin.py", "moved")
    train(call, "--plugin=moved/plugin.py", "--train_steps=4")
    run = Run.open("run")
    assert run.config["plugins"] == [str(tmp_path / "moved" / "plugin.py")] and run.checkpoints.steps()[-1] == 4


def test_a_run_opens_with_its_plugins(run, tmp_path):
    assert open_run() == Run.open("run").config["plugins"] == [str(tmp_path / "plugin.py")]


def test_a_plugin_that_is_gone_is_named(run, tmp_path, call):
    Path("plugin.py").unlink()
    status, err = call("average", "--run=run")
    assert status == 2 and err.count("\n") == 1
    for words in (f"no plug-in '{tmp_path}/plugin.py'", "the run run was", "--plugin=MODULE_OR_PATH"):
        assert words in err


@pytest.mark.parametrize("move", [shutil.move, shutil.copy])
def test_a_given_plugin_takes_the_place_of_the_recorded_one(run, tmp_path, move):
    Path("moved").mkdir()
    move("plugin.py", "moved/plugin.py")
    assert open_run("--plugin=moved/plugin.py") == [str(tmp_path / "moved" / "plugin.py")]


def test_one_that_brings_other_names_does_not(run, tmp_path):
    write("other.py", hparams("my_other"))
    assert open_run("--plugin=other.py") == [str(tmp_path / "other.py"), str(tmp_path / "plugin.py")]


def test_a_run_from_before_plugins_opens(run):
    config = json.loads((run / "config.json").read_text())
    config["problem"]["name"], config["preset"] = "copy", "toy"
    del config["plugins"]
    (run / "config.json").write_text(json.dumps(config))
    assert Run.open(run).hparams and not plugins.loaded()
