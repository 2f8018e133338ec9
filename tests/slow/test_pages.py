"""Slow tests of documentation pages: generated pages are up to date, and the training code in keras_fit.md runs."""

import re
import subprocess
import sys

import keras
import pytest
from helpers.paths import ROOT

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="one backend is enough")


def test_commands_and_presets_pages_match():
    assert subprocess.run([sys.executable, ROOT / "docs" / "reference.py", "--check"]).returncode == 0


def test_keras_fit_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "keras_fit.md").read_text(encoding="utf-8")
    namespace = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)), namespace)
    assert isinstance(namespace["best"].text, str) and namespace["maps"].source_text == "The small dog sees a cat."
