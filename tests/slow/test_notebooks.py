"""Tests that the notebooks run from the first cell to the last."""

import ast
import json
import re

import keras
import pytest
from helpers.commands import environment
from helpers.paths import ROOT

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SHORTER = {
    r"train_pairs=8_000": "train_pairs=1_500", r"steps_per_epoch=[12]00": "steps_per_epoch=3", r"_steps=30": "_steps=3",
    r"\[:[12]00\]": "[:10]",
}  # fmt: skip
"""{pattern: replacement} that reduces the numbers of updates and sentences in the notebooks."""
on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="one backend is enough")


def run(notebook, folder, monkeypatch):
    """Run a notebook in a new process. Assert that no cell fails."""
    monkeypatch.setenv("PYTHONPATH", environment(folder)["PYTHONPATH"])
    nbclient.NotebookClient(notebook, timeout=550, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs and not [output for output in outputs if output["output_type"] == "error"]


@on_tensorflow
def test_notebooks_run_with_fewer_updates(tmp_path, monkeypatch):
    """Run all notebooks in one process to save time, each in a separate folder and with an empty namespace."""
    whole = nbformat.v4.new_notebook()
    for path in NOTEBOOKS:
        (tmp_path / path.stem).mkdir()
        whole.cells.append(nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {tmp_path / path.stem}"))
        text = path.read_text(encoding="utf-8")
        for long, short in SHORTER.items():
            text = re.sub(long, short, text)
        whole.cells += [cell for cell in nbformat.reads(text, as_version=4).cells if cell.cell_type == "code"]
    run(whole, tmp_path, monkeypatch)
    for long in SHORTER:
        assert any(re.search(long, path.read_text(encoding="utf-8")) for path in NOTEBOOKS)


@on_tensorflow
@pytest.mark.soak
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_completely(path, tmp_path, monkeypatch):
    run(nbformat.read(path, as_version=4), tmp_path, monkeypatch)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_as_executed(path):
    """Check that cells ran in order, that images are small, and that no output contains a local path."""
    text = path.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        for output in cell["outputs"]:
            assert output["output_type"] != "error" and output.get("name") != "stderr"
            for kind, data in output.get("data", {}).items():
                assert len("".join(data)) < 400_000, kind
    assert "/root" not in text and "/home" not in text and "/tmp" not in text


def literals_of_prints(source):
    """Return the literal texts, also those in f-strings, that the unconditional `print` calls of a cell print."""
    lines = [line for line in source.splitlines() if not line.startswith(("%", "!"))]
    calls = [node.value for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.Expr)]
    calls = [call for call in calls if isinstance(call, ast.Call) and ast.unparse(call.func) == "print"]
    nodes = [node for call in calls for text in call.args for node in getattr(text, "values", [text])]
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_stored_outputs_contain_printed_literals():
    """Check that the stored outputs are not from older code."""
    checked = 0
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            output = "".join("".join(output.get("text", "")) for output in cell.get("outputs", []))
            for literal in literals_of_prints("".join(cell["source"])) if cell["cell_type"] == "code" else []:
                assert literal in output, path.name
                checked += 1
    assert checked > 10


def test_readme_names_all_notebooks():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 4 and all(f"notebooks/{path.name}" in readme for path in NOTEBOOKS)
