"""What docs/own_data.md tells a newcomer to type, typed: own text, a training, a translation, a picture, an export."""

import re
import shlex

import keras
import pytest
from conftest import ROOT

import keras_transformer as kt

SMALLER = ["--num_layers=1", "--d_model=16", "--d_ff=32", "--num_heads=2", "--batch_tokens=1024", "--beam_size=2",
           "--train_steps=4", "--eval_steps=4", "--checkpoint_steps=4", "--set", "problem.vocab_size=300"]  # fmt: skip


def commands_of(page):
    """The commands in a page's indented blocks, each a list: its name and its arguments."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^    python -m keras_transformer\.(.+)$", text, flags=re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="commands are tested on TensorFlow")
def test_own_text_becomes_a_translator_a_picture_and_an_export(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grammar = kt.problem("toy_ende", train_pairs=400)
    (tmp_path / "corpus").mkdir()
    for split in ("train", "validation", "test"):
        for side, language in enumerate(("en", "de")):
            lines = [pair[side] for pair in grammar.pairs(split)][:400]
            (tmp_path / "corpus" / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "lines.en").write_text("The small dog sees a cat.\n\nThe cat sleeps.\n", encoding="utf-8")
    commands = commands_of("docs/own_data.md")
    assert [name for name, *_ in commands] == ["train", "evaluate", "translate", "visualize", "export"]
    for name, *arguments in commands:
        out = call(name, *arguments, *(SMALLER if name == "train" else [])).succeeded_with_warnings()
        assert out or name == "translate"
    assert len((tmp_path / "lines.de").read_text(encoding="utf-8").splitlines()) == 3
    assert "A sentence of yours." in (tmp_path / "pictures" / "attention.html").read_text(encoding="utf-8")
    assert (tmp_path / "exported" / "saved_model.pb").is_file()
    assert call("average", "--run=runs/mine", "--last=1").succeeded_with_warnings()
