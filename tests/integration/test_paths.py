"""Tests of flags with paths: `~`, empty values, shell quotes, and outputs that would overwrite an input."""

import os
import shlex
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.commands import REVERSE

from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.runs.checkpoint import Checkpoints
from keras_transformer.runs.run import Run
from keras_transformer.training import finetune
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import check_output

SYMBOLS = SymbolTokenizer(["a"])

EMPTY = [
    ("train", "--data_dir="),
    ("train", "--output_dir="),
    ("train", "--plugin="),
    ("train", "--set=problem.source="),
    ("prepare", "--raw_dir="),
    ("prepare", "--problem="),
    ("translate", "--run="),
    ("translate", "--ensemble="),
    ("translate", "--output="),
    ("evaluate", "--run= "),
    ("evaluate", "--checkpoint="),
    ("score", "--source="),
    ("average", "--run="),
    ("export", "--output_dir="),
    ("visualize", "--curves="),
    ("serve", "--host="),
    ("trees", "--input="),
    ("convert", "--from="),
]
NEEDED = {
    "score": ["--run=r", "--target=t"],
    "export": ["--run=r", "--format=keras"],
    "visualize": ["--output_dir=o"],
    "serve": ["--run=r"],
    "translate": ["--run=r"],
    "evaluate": ["--run=r"],
    "convert": ["--model=m", "--output_dir=o"],
}


@pytest.fixture
def user_home(tmp_path, monkeypatch):
    """Make `~` a temporary folder and return its path. The working directory is a different folder."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("s1 s2\ns3\n")
    return path


# Home folder


def test_data_dir_expands_home_folder(call, user_home):
    flags = ("--problem=reverse", "--set=problem.train_pairs=50", "--data_dir=~/data")
    call("prepare", *flags).succeeded()
    assert [path.name[:8] for path in (user_home / "data").iterdir()] == ["reverse-"]
    assert not os.listdir()


def test_problem_settings_expand_home_folder(call, user_home):
    (user_home / "text").mkdir()
    for language in ("en", "de"):
        (user_home / "text" / f"train.{language}").write_text("a b\n" * 50)
    flags = ("--problem=parallel_text", "--raw_dir=~/text", "--set=problem.extra_train=~/text/more")
    call("prepare", *flags).refused(f"{user_home}/text/more.en does not exist")


@pytest.mark.parametrize(
    ("command", "flags", "path"),
    [
        ("train", [*REVERSE, "--init_from=~/old"], "old"),
        ("train", [*REVERSE, "--plugin=~/mine.py"], "mine.py"),
        ("average", ["--run=~/run"], "run"),
        ("evaluate", ["--run=~/run"], "run"),
        ("evaluate", ["--gold=~/gold", "--test=~/test"], "gold"),
        ("score", ["--run=~/run", "--source=~/a", "--target=~/b"], "a"),
        ("translate", ["--run=~/run", "--input=~/a"], "a"),
        ("translate", ["--run=~/run", "--input={lines}", "--prefixes=~/p"], "p"),
        ("export", ["--run=~/run", "--format=keras", "--output_dir=~/x"], "run"),
        ("visualize", ["--curves=~/run", "--output_dir=~/x"], "run"),
        ("trees", ["--input=~/a"], "a"),
    ],
)
def test_path_flags_expand_home_folder(call, user_home, lines, command, flags, path):
    call(command, *(flag.format(lines=lines) for flag in flags)).refused(user_home / path)
    assert not os.listdir()


# Empty values


@pytest.mark.parametrize(("command", "flag"), EMPTY)
def test_empty_flag_values_are_rejected(call, tmp_path, monkeypatch, command, flag):
    monkeypatch.chdir(tmp_path)
    name = flag.removeprefix("--set=problem.").lstrip("-").partition("=")[0]
    problem = ["--problem=parallel_text"] if flag.startswith("--set") else []
    needed = [one for one in NEEDED.get(command, []) if not one.startswith(f"--{name}=")]
    call(command, *problem, *needed, flag).refused(f"{name} must not be empty")
    assert not os.listdir(tmp_path)


# Outputs with the same path as an input


@pytest.mark.parametrize("output", ["{}", "{}/../lines.txt", "link.txt", "hard.txt"])
def test_translate_keeps_input_given_as_output(call, home, lines, output, monkeypatch):
    monkeypatch.chdir(lines.parent)
    (lines.parent / "link.txt").symlink_to(lines)
    (lines.parent / "hard.txt").hardlink_to(lines)
    (lines.parent / "folder").mkdir()
    path = output.format(lines if output == "{}" else "folder")
    call("translate", f"--run={home.run}", f"--input={lines}", f"--output={path}").refused("--output", "--input")
    assert lines.read_text() == "s1 s2\ns3\n"


@pytest.mark.parametrize("flag", ["--input", "--prefixes"])
def test_translate_keeps_input_named_like_partial(call, home, lines, flag):
    partial = lines.with_name("output.txt.partial")
    partial.write_text("s1\ns2\n")
    inputs = {"--input": lines, flag: partial}
    output = f"--output={lines.with_name('output.txt')}"
    call("translate", f"--run={home.run}", output, *map("=".join, _texts(inputs))).refused("--output", flag)
    assert partial.read_text() == "s1\ns2\n"


@pytest.mark.parametrize("flag", ["--source", "--target"])
def test_score_keeps_input_given_as_output(call, home, lines, flag):
    other = lines.with_name("other.txt")
    other.write_text("s1 s2\ns3\n")
    inputs = {"--source": other, "--target": other, flag: lines, "--output": lines}
    call("score", f"--run={home.run}", *map("=".join, _texts(inputs))).refused("--output", flag)
    assert lines.read_text() == "s1 s2\ns3\n"


def test_evaluate_keeps_outputs_to_compare_with(call, home, tmp_path):
    other = tmp_path / "test.outputs.txt"
    other.write_text("s1\n")
    flags = (f"--run={home.run}", f"--compare={other}")
    call("evaluate", *flags, f"--output_dir={tmp_path}").refused("--output_dir", "--compare")
    call("evaluate", *flags, f"--results={other}").refused("--results", "--compare")
    assert other.read_text() == "s1\n"


def test_evaluate_keeps_trees_given_as_results(call, tmp_path):
    trees = tmp_path / "trees.txt"
    trees.write_text("(S (NN a))\n")
    call("evaluate", f"--gold={trees}", f"--test={trees}", f"--results={trees}").refused("--results", "--gold")
    assert trees.read_text() == "(S (NN a))\n"


def test_trees_keeps_input_named_like_drawing(call, tmp_path):
    trees = tmp_path / "tree-0001.svg"
    trees.write_text("(S (NN a))\n")
    call("trees", f"--input={trees}", "--format=svg", f"--output_dir={tmp_path}").refused("--input")
    assert trees.read_text() == "(S (NN a))\n"


def test_check_output_knows_redirected_streams(lines, monkeypatch):
    with open(lines) as file:
        monkeypatch.setattr("sys.stdin", file)
        with pytest.raises(Exception, match="--output and --input must be different files"):
            check_output("--output", lines, input="-")


def test_check_output_allows_devices_and_new_files(tmp_path, lines):
    check_output("--output", "/dev/null", input="/dev/null")
    check_output("--output", tmp_path / "new", input=tmp_path / "missing", prefixes=None, other=lines)


def _texts(flags):
    return [(name, str(value)) for name, value in flags.items()]


@pytest.mark.parametrize(
    ("command", "flag"), [("train", "--output_dir"), ("visualize", "--text"), ("score", "--source")]
)
def test_flags_must_be_utf8(call, command, flag):
    call(command, *NEEDED.get(command, []), f"{flag}=a\udcff").refused(f"{flag} must be UTF-8, got 'a\\udcff'")


# Flags that error messages suggest


def suggested(line, words):
    """Return the shell arguments that follow `words` in a line."""
    return shlex.split(line.partition(words)[2])


def test_missing_run_suggests_quoted_output_dir(call, tmp_path):
    path = tmp_path / "it's a run"
    said = call("average", f"--run={path}").err
    assert suggested(said, "Create one with train") == [f"--output_dir={path}"]


def test_missing_average_suggests_quoted_run(tmp_path):
    path = tmp_path / "it's a run"
    with pytest.raises(UserError) as caught:
        Checkpoints(path / "checkpoints").load("averaged")
    assert suggested(str(caught.value), "python -m")[1:] == [f"--run={path}"]


def test_finished_run_suggests_quoted_run(call, home, tmp_path):
    path = tmp_path / "it's a run"
    shutil.copytree(home.run, path)
    (line,) = call("train", *home.again(path)).succeeded()
    assert suggested(line, "python -m")[1] == f"--run={path}"


def test_problem_parameter_is_suggested_in_quotes(call):
    flags = ("--problem=parallel_text", "--raw_dir=r", "--set", "extra_train=it's a file")
    said = call("train", *flags).err
    assert suggested(said, "Use") == ["--set", "problem.extra_train=it's a file"]


def test_wrong_init_from_is_quoted(monkeypatch, tmp_path):
    path = tmp_path / "it's a run"
    checkpoints = SimpleNamespace(load=lambda *_, **__: ({"weights": {"other": np.zeros(1)}}, {}))
    monkeypatch.setattr(Run, "open", lambda _: SimpleNamespace(path=path, checkpoints=checkpoints, tokenizer=SYMBOLS))
    model = SimpleNamespace(weights=[], vocabulary_weights=[], vocabulary_tables=[], trainable_variables=[])
    monkeypatch.setattr(finetune, "model_arrays", lambda _: {})
    with pytest.raises(UserError) as caught:
        finetune.initialise(model, SYMBOLS, {"run": path, "checkpoint": "best"})
    assert shlex.split(str(caught.value).partition(": the new model")[0]) == [f"--init_from={path}"]
