"""The notebooks run from the first cell to the last, where nothing was run before."""

import json

import keras
import pytest
from helpers.commands import environment
from helpers.paths import ROOT

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SHORTER = {"train_pairs=8_000": "train_pairs=1_500", "steps_per_epoch=100": "steps_per_epoch=10",
           "steps_per_epoch=200": "steps_per_epoch=20"}  # fmt: skip
"""What leaves trainings of notebooks a tenth or a fifth of their updates; the code is otherwise the same."""


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="one backend is enough")
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, whole, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", environment(tmp_path)["PYTHONPATH"])
    text = path.read_text(encoding="utf-8")
    if not whole:
        assert any(long in text for long in SHORTER)
        for long, short in SHORTER.items():
            text = text.replace(long, short)
    notebook = nbformat.reads(text, as_version=4)
    nbclient.NotebookClient(notebook, timeout=550, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output["output_type"] == "error"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_as_it_ran(path):
    """In order, with pictures that are no larger than a page can bear, and without a path of somebody's machine."""
    text = path.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        for output in cell["outputs"]:
            assert output["output_type"] != "error" and output.get("name") != "stderr"
            for kind, data in output.get("data", {}).items():
                assert len("".join(data)) < 400_000, kind
    assert "/root" not in text and "/home" not in text and "/tmp" not in text


def test_there_are_as_many_as_the_documentation_says():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 4 and all(f"notebooks/{path.name}" in readme for path in NOTEBOOKS)
