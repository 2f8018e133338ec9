"""Tests that the commands in docs/own_data.md run as printed: train, translate, draw and export."""

import re
import shlex
import subprocess

import keras
import pytest
from helpers.paths import ROOT

import keras_transformer as kt

SMALLER = ["--num_layers=1", "--d_model=16", "--d_ff=32", "--num_heads=2", "--batch_tokens=1024", "--beam_size=2",
           "--train_steps=4", "--eval_steps=4", "--checkpoint_steps=4", "--average_last=1",
           "--set", "problem.vocab_size=300"]  # fmt: skip
pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="one backend is enough")


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Create parallel text in the working directory: 400 lines for training, 40 each for validation and test."""
    monkeypatch.chdir(tmp_path)
    grammar, folder = kt.problem("toy_ende", train_pairs=400), tmp_path / "corpus"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        for side, language in enumerate(("en", "de")):
            lines = [pair[side] for pair in grammar.pairs(split)][: 400 if split == "train" else 40]
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def commands_of(section):
    """Return the Python commands in the shell blocks of a section as [(module, arguments), ...]."""
    text = (ROOT / "docs/own_data.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)[1]
    script = "\n".join(re.findall(r"^    .+$", section, flags=re.MULTILINE))
    told = subprocess.run(["bash", "-ec", f'python() {{ echo "${{*@Q}}"; }}\n{script}'], capture_output=True, text=True)
    assert not told.returncode, told.stderr
    lines = [shlex.split(line) for line in told.stdout.splitlines()]
    assert all(line[0] == "-m" for line in lines)
    return [(name.removeprefix("keras_transformer."), arguments) for _, name, *arguments in lines]


def typed(call, commands):
    """Run commands of docs/own_data.md, with a smaller model in `train`. Return the names of the commands."""
    for name, arguments in commands:
        out = call(name, *arguments, *(SMALLER if name == "train" else [])).succeeded_with_warnings()
        assert out or name == "translate"
    return [name for name, _ in commands]


def test_own_data_page_trains_translates_and_exports(call, corpus, tmp_path):
    (tmp_path / "lines.en").write_text("The small dog sees a cat.\n\nThe cat sleeps.\n", encoding="utf-8")
    commands = commands_of("Train a first model") + commands_of("Use the model")
    assert typed(call, commands) == ["train", "evaluate", "translate", "visualize", "export"]
    assert len((tmp_path / "lines.de").read_text(encoding="utf-8").splitlines()) == 3
    assert "One of your sentences." in (tmp_path / "pictures" / "attention.html").read_text(encoding="utf-8")
    assert (tmp_path / "exported" / "mine" / "saved_model.pb").is_file()
    assert call("average", "--run=runs/mine", "--last=1").succeeded_with_warnings()


@pytest.mark.soak  # trains three teachers
def test_own_data_page_distills_several_teachers(call, corpus, tmp_path):
    corpus.rename(tmp_path / "FOLDER")
    commands = commands_of("Knowledge distillation")
    assert typed(call, commands) == [*["train", "average"] * 3, "translate", "train"]
    assert len((tmp_path / "taught/taught.de").read_text(encoding="utf-8").splitlines()) == 400
    assert (tmp_path / "runs/pupil/checkpoints/best.json").is_file()
