"""The documentation says what is there."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]


def test_results_and_benchmarks_pages_are_what_the_rows_say():
    assert subprocess.run([sys.executable, ROOT / "docs" / "results.py", "--check"]).returncode == 0


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "results").glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_result_names_what_made_it(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "benchmark" in row:
            assert {"command", "commit", "machine", "date"} <= row.keys()
        else:
            assert {"commands", "commit", "seed", "machine", "manifest_sha256", "signatures"} <= row.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_the_map_names_every_row_of_the_paper_and_what_it_names_is_there():
    from keras_transformer import registry

    registry.load_catalog()
    page = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE)
    assert rows == [str(number) for number in range(1, 34)]
    names = set()
    for cell in re.findall(r"`(test_\w+\.py[^|]*)", page):
        file, name = None, None
        for part in re.findall(r"`([^`]*)`", f"`{cell}"):
            file, name = part.split(": ") if ": " in part else (part, None) if part.endswith(".py") else (file, part)
            text = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert name is None or f"def {name}(" in text, f"{file}: {name}"
            names.add(name)
    assert len(names) > 25
    presets = {name for name, _ in registry.hparams.describe()}
    assert set(re.findall(r"`((?:base|big|parsing)(?:_\w+)?)`", page)) <= presets


def test_readme_names_every_command():
    from keras_transformer.__main__ import COMMANDS

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"`{command}`" in readme
        home = ROOT / "keras_transformer" / command
        assert home.with_suffix(".py").exists() or (home / "__main__.py").exists()


def test_readme_api_example_runs(tmp_path, monkeypatch):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    # The same calls, on less data.
    smaller = f'kt.problem("toy_ende", data_dir={str(tmp_path)!r}, train_pairs=2000)'
    code = code.replace('kt.problem("toy_ende")', smaller)
    code = code.replace("epochs=10", "epochs=1, verbose=0")
    namespace = {}
    exec(code.replace("translator.translate(", "hypotheses = translator.translate("), namespace)
    assert len(namespace["hypotheses"][0]) == 2
