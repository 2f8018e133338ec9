"""Tests that the documentation matches the code and that its examples run."""

import importlib
import json
import re

import keras
import numpy as np
import pytest
from helpers.paths import ROOT

import keras_transformer
from keras_transformer import layers

PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]


@pytest.fixture
def generators(monkeypatch):
    """Put the programs that generate pages on the import path."""
    monkeypatch.syspath_prepend(ROOT / "docs")


def test_results_pages_match_rows(generators):
    assert importlib.import_module("results").main(["--check"]) == 0


def test_generator_reports_outdated_pages(generators, capsys):
    assert importlib.import_module("results").write({"results.md": "old"}, ["--check"]) == 1
    assert "results.md" in capsys.readouterr().err


def test_results_table_shows_error_sentences(generators):
    scores = importlib.import_module("pages.scores")
    old = json.loads((ROOT / "docs" / "results" / "parsing.jsonl").read_text(encoding="utf-8").splitlines()[1])
    new = {**old, "error_sentences": 7, "f1_of_all_sentences": 75.5}
    heads, _, *rows = ([cell.strip() for cell in line.split("|")] for line in scores.scores([old, new]).splitlines())
    places = [heads.index(name) for name in ("F1", "errors", "F1 of all sentences")]
    assert [[row[place] for place in places] for row in rows] == [["76.9", "14", "–"], ["76.9", "7", "75.5"]]


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "results").glob("*.jsonl")), ids=lambda path: path.stem)
def test_result_rows_name_command_and_commit(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "benchmark" in row:
            assert {"command", "commit", "machine", "date"} <= row.keys()
        else:
            assert {"commands", "commit", "seed", "machine", "manifest_sha256", "signatures"} <= row.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_are_valid(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_paper_map_names_all_rows_and_existing_tests():
    from keras_transformer.config import registry

    registry.load_catalog()
    page = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE)
    assert rows == [str(number) for number in range(1, 34)]
    assert len(named_tests_of(page)) > 25
    presets = {name for name, _ in registry.hparams.describe()}
    assert set(re.findall(r"`((?:base|big|parsing)(?:_\w+)?)`", page)) <= presets


def test_comparison_names_existing_tests():
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    assert len(named_tests_of(page)) > 10


def named_tests_of(page):
    """Return the names of the tests that a page mentions.

    A table cell contains `file: name` for its first test, and only `name` for each further test of the same file.

    Raises:
        AssertionError: A test does not exist.
    """
    names = set()
    for cell in re.findall(r"`(test_\w+\.py[^|]*)", page):
        file, name = None, None
        for part in re.findall(r"`([^`]*)`", f"`{cell}"):
            file, name = part.split(": ") if ": " in part else (part, None) if part.endswith(".py") else (file, part)
            (path,) = (ROOT / "tests").glob(f"**/{file}")
            assert name is None or f"def {name}(" in path.read_text(encoding="utf-8"), f"{file}: {name}"
            names.add(name)
    return names


def test_readme_names_all_commands():
    from keras_transformer.__main__ import COMMANDS

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"`{command}`" in readme
        home = ROOT / "keras_transformer" / command
        assert home.with_suffix(".py").exists() or (home / "__main__.py").exists()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_first_example_runs(page, tmp_path, monkeypatch, capsys):
    # Run the example with less data and fewer epochs.
    smaller = f'kt.problem("toy_ende", data_dir={str(tmp_path)!r}, train_pairs=400)'
    code = code_of(page).replace('kt.problem("toy_ende")', smaller)
    code = code.replace("epochs=8, verbose=2", "epochs=1, verbose=0")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    _, *hypotheses = capsys.readouterr().out.splitlines()[-3:]
    assert all(re.match(r"-\d+\.\d\d  ", line) for line in hypotheses) and len(hypotheses) == 2


def code_of(page):
    """Return the Python code blocks of a page as one program."""
    return "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL))


@pytest.mark.usefixtures("eager")
def test_pictures_code_runs(home):
    code = code_of("docs/pictures.md")
    assert "runs/toy_ende-toy" in code and "The small dog sees a cat." in code
    code = code.replace("runs/toy_ende-toy", str(home.run)).replace("The small dog sees a cat.", "s1 s2")
    namespace = {}
    exec(f"import keras_transformer as kt\n{code}", namespace)
    assert namespace["maps"].source.labels == ("s1", "s2", "</s>")


def test_layers_code_runs_and_saves_model(tmp_path):
    namespace = {}
    exec(code_of("docs/layers.md"), namespace)
    model, inputs = namespace["model"], [namespace["sources"], namespace["shifted"]]
    assert np.isfinite(namespace["history"].history["loss"]).all() and int(model.optimizer.iterations.value) == 2
    model.save(tmp_path / "x.keras")
    padded = [np.pad(array, ((0, 0), (0, 3))) for array in inputs]
    found = keras.saving.load_model(tmp_path / "x.keras").predict(padded, verbose=0)
    np.testing.assert_allclose(
        found[:, :6][inputs[1] != 0], model.predict(inputs, verbose=0)[inputs[1] != 0], atol=1e-5
    )


def test_layers_page_names_all_layers():
    page = (ROOT / "docs" / "layers.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in layers.__all__)


def test_api_reference_has_all_public_names():
    for module, page in ((keras_transformer, "kt.md"), (layers, "layers.md")):
        text = (ROOT / "docs" / "api" / page).read_text(encoding="utf-8")
        documented = set(re.findall(r"^\.\. auto(?:class|function):: (\w+)$", text, flags=re.MULTILINE))
        assert documented == set(module.__all__) - {"layers"}


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {keras_transformer.__version__}\n" in citation


def test_commands_page_matches_help(generators, monkeypatch):
    reference = importlib.import_module("reference")
    monkeypatch.setenv("COLUMNS", reference.WIDTH)
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert page == reference.results.page("commands.md", vars(reference)), "run `python docs/reference.py`"


def test_troubleshooting_quotes_existing_messages():
    files = [path for folder in ("keras_transformer", "problems") for path in (ROOT / folder).rglob("*.py")]
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # join string literals that span lines
    source += source.replace("_", " ")  # `prepare` prints keys such as `dropped_as_copies` with spaces
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE)
    assert len(messages) == 21
    for message in messages:
        for part in filter(None, (part.strip(" ,;") for part in message.split("…"))):
            assert part in source, part


def test_index_lists_all_pages():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for path in (ROOT / "docs").glob("*.md"):
        assert path.stem == "index" or f"\n{path.stem}\n" in index, path.stem
