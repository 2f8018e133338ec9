"""Tests that the wording checker of `make lint` finds each kind of fault and accepts plain text."""

import json

import pytest
from helpers.paths import ROOT

LONG = " ".join(["Word", *["word"] * 35])


@pytest.fixture
def wording(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import wording

    return wording


@pytest.mark.parametrize(
    "name, text, line, finding",
    [
        ("a.py", '"""Where files are."""', 1, "docstring starts with 'Where'"),
        ("a.py", 'x = 1\n\ndef f():\n    """Returns one."""', 4, "not with an imperative verb"),
        ("a.py", 'def f():\n    """Return one.\n\n    It tells nothing.\n    """', 4, "'tells': write print"),
        ("a.py", "x = 1\n# The caller tells\n# what to do.", 2, "'tells'"),
        ("a.py", 'parser.add_argument("--x", help="number; default 1")', 1, "semicolon in a help text"),
        ("a.py", 'parser.add_argument("--x", help="updates a second")', 1, "'updates a second': write per"),
        ("a.py", 'raise UserError(f"{path} is no directory")', 1, "'is no directory'"),
        ("a.py", 'log.warning("the file is gone")', 1, "'is gone': write is missing"),
        ("a.py", f"def test_{'x' * 60}(): pass", 1, "test name of 65 characters"),
        ("a.md", "# Title\n\nWrite it anew.", 3, "'anew': write again"),
        ("a.md", "It needs a server of its own.", 1, "'of its own': write its own"),
        ("a.md", "It writes the file as well.", 1, "'as well': write also"),
        ("a.md", "| a | b |\n|---|---|\n| x | beside y |", 3, "'beside'"),
        ("a.md", "Of all files, one is left.", 1, "sentence starts with 'Of'"),
        ("a.md", f"Short. {LONG}.", 1, "sentence of 36 words, at most 35"),
        ("a.ipynb", json.dumps({"cells": [{"cell_type": "markdown", "source": ["Two trainings."]}]}), 1, "'trainings'"),
        ("a.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": ["x = 1  # anew"]}]}), 1, "'anew'"),
    ],
)
def test_checker_finds_each_kind_of_fault(wording, name, text, line, finding):
    ((found_line, found),) = wording.check(name, text)
    assert found_line == line and finding in found


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.py", '@property\ndef f(self):\n    """Names of the files."""'),
        ("a.py", '"""Process files.\n\nRun this command:\n\n    tell told\n"""'),
        ("a.md", "Write it.\n\n    a command that tells\n\n```text\nanew\n```\n\n`told` and <!-- told --> are fine."),
        ("a.md", "The copy has the size of its own file, as well as the same name."),
        ("a.md", f"- {' '.join(['word'] * 20)}\n- {' '.join(['word'] * 20)}"),
        ("a.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": ["!ls 'anew"]}]})),
    ],
)
def test_checker_accepts_plain_text(wording, name, text):
    assert list(wording.check(name, text)) == []


def test_checker_prints_findings_and_fails(wording, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(wording, "ROOT", tmp_path)
    monkeypatch.setattr(wording, "files", lambda paths: [tmp_path / "page.md"])
    (tmp_path / "page.md").write_text("Plain text.")
    assert wording.main([]) == 0 and capsys.readouterr().out == ""
    (tmp_path / "page.md").write_text("It is told.\n\nAnew.")
    assert wording.main([]) == 1
    assert capsys.readouterr().out.startswith("page.md:1: 'is told'")
    wording.main(["--count"])
    assert capsys.readouterr().out == "    3 page.md\n"
