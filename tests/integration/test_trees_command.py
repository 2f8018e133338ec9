"""Tests of the command `trees` in a new process: stdin, closed pipes and imported modules."""

import subprocess
import sys

from helpers.commands import environment, start

from keras_transformer.parsing.drawing import text_drawing
from keras_transformer.parsing.tree import tree_of

CAT = "(S (NP (DT the) (NN cat)) (VP (VBZ sees) (NP (PRP it))) (. .))"


def opened(tmp_path, *arguments):
    """Start `trees` with the input file trees.ptb in `tmp_path`. Return the process."""
    command = [sys.executable, "-m", "keras_transformer.trees", "--input=trees.ptb", *arguments]
    return subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_trees_reads_stdin(tmp_path):
    assert start("trees", cwd=tmp_path, input=CAT).succeeded() == text_drawing(tree_of(CAT)).split("\n")
    start("trees", cwd=tmp_path, input="(S (NN a)").refused("stdin:1: the tree that begins here is not closed")


def test_trees_prints_utf8_in_other_locales(tmp_path):
    outcome = start("trees", cwd=tmp_path, input=CAT, variables={"PYTHONIOENCODING": "latin-1"})
    assert outcome.succeeded() == text_drawing(tree_of(CAT)).split("\n")


def test_trees_exits_quietly_without_reader(tmp_path):
    (tmp_path / "trees.ptb").write_text(f"{CAT}\n" * 3000)
    with opened(tmp_path) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_trees_writes_all_pictures_without_a_reader(tmp_path):
    (tmp_path / "trees.ptb").write_text(f"{CAT}\n" * 20)
    with opened(tmp_path, "--format=svg", "--output_dir=out") as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0 and len(list((tmp_path / "out").iterdir())) == 20


def test_trees_imports_no_framework(tmp_path):
    (tmp_path / "trees.ptb").write_text(CAT)
    code = "import sys; from keras_transformer.trees import main; main(['--input=trees.ptb']); print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=True)
    modules = {*done.stdout.splitlines()[-1].split()}
    assert "keras_transformer" in modules and not {"keras", "tensorflow", "jax", "torch", "numpy"} & modules
