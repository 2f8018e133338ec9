"""Test that a command in a new process loads a plug-in by its module name."""

import json
import re

from helpers.commands import start
from helpers.paths import ROOT

SMALL = ("--num_layers=1", "--d_model=16", "--d_ff=32", "--num_heads=2", "--batch_tokens=512", "--warmup_steps=2",
         "--train_steps=3", "--beam_size=1", "--extra_length=3")  # fmt: skip


def write_example(folder):
    """Write the example plug-in of docs/plugins.md to a folder."""
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(\"\"\".*?)```", page, flags=re.DOTALL)
    (folder / "numbers_plugin.py").write_text(code, encoding="utf-8")


def test_plugin_page_example_runs_by_module_name(tmp_path):
    write_example(tmp_path)
    flags = "--plugin=numbers_plugin", "--problem=numbers_ende", "--hparams=numbers", "--model=capped"
    start("train", *flags, *SMALL, cwd=tmp_path).succeeded()
    run = "runs/numbers_ende-numbers"
    assert json.loads((tmp_path / run / "config.json").read_text())["plugins"] == ["numbers_plugin"]
    again = start("evaluate", f"--run={run}", "--plugin=numbers_plugin", cwd=tmp_path)
    assert again.succeeded()[-1].startswith("exact match = ")
