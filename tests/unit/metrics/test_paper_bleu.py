"""Tests of BLEU as in the paper, on Moses tokens with split compounds."""

import json
import sys

import pytest
from helpers.commands import SMALL, TEXT, write_text
from helpers.quick import eager_functions
from sacrebleu.metrics import BLEU

import keras_transformer as kt
from keras_transformer.metrics.bleu import sacre_bleu
from keras_transformer.metrics.paper_bleu import moses_tokenizer, paper_bleu, split_compounds

pytest.importorskip("sacremoses")


@pytest.mark.parametrize(
    ("tokens", "split"),
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("a - b", "a - b"),
        ("-a b- --", "-a b- --"),
        ("two-to-three", "two ##AT##-##AT## to ##AT##-##AT## three"),
        ("ab--cd", "ab ##AT##-##AT## -cd"),
        ("", ""),
    ],
)
def test_paper_bleu_splits_compounds_at_hyphens(tokens, split):
    assert split_compounds(tokens) == split


@pytest.mark.parametrize(
    ("language", "text", "tokens"),
    [
        ("de", "Er sagte: “Ja, z.B. morgen.”", "Er sagte : &quot; Ja , z.B. morgen . &quot;"),
        ("de", "Am 3. Mai kam’s…", "Am 3. Mai kam &apos; s ..."),
        ("en", "It isn't Mr. Smith's.", "It isn &apos;t Mr. Smith &apos;s ."),
        ("fr", "L'homme n'est pas là.", "L&apos; homme n&apos; est pas là ."),
    ],
)
def test_paper_bleu_tokenizes_like_moses(language, text, tokens):
    assert moses_tokenizer(language)(text) == tokens


def test_paper_bleu_is_unsmoothed_bleu_of_split_tokens():
    references = ["Der weltweit-bekannte Mann schläft nicht.", "Eine Frau liest ein Buch im Park."]
    outputs = ["Der weltweit-bekannte Mann schläft.", "Eine Frau liest das Buch im Park."]
    tokens = [
        ["Der weltweit ##AT##-##AT## bekannte Mann schläft .", "Eine Frau liest das Buch im Park ."],
        ["Der weltweit ##AT##-##AT## bekannte Mann schläft nicht .", "Eine Frau liest ein Buch im Park ."],
    ]
    expected = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(tokens[0], [tokens[1]]).score
    score = paper_bleu(outputs, references, "de")
    assert score.value == pytest.approx(expected) and 20 < expected < 90
    assert score.value != pytest.approx(sacre_bleu(outputs, references).value, abs=0.5)
    assert score.name == "paper BLEU"
    for part in ("smooth:none", "tok:none", "moses:", "lang:de", "compounds:split"):
        assert part in score.signature


def test_paper_bleu_is_100_or_0_at_extremes():
    text = ["Ein Mann geht über die Straße.", "Zwei Hunde spielen im Schnee."]
    assert paper_bleu(text, text, "de").value == pytest.approx(100)
    assert paper_bleu(["x y z w v"] * 2, text, "de").value == 0


@pytest.fixture
def run(call, tmp_path):
    """A run of two updates on a folder of text. TensorFlow functions run eagerly during the test."""
    flags = (*write_text(tmp_path / "text", TEXT), "--set=problem.vocab_size=40", *SMALL)
    with eager_functions():
        call("train", *flags, "--hparams=toy", "--train_steps=2", f"--output_dir={tmp_path}/run").succeeded()
        yield tmp_path / "run"


def test_evaluate_prints_paper_bleu_before_main_score(call, run, tmp_path, monkeypatch):
    flags = (f"--run={run}", "--split=validation", "--paper_bleu")
    lines = call("evaluate", *flags, f"--results={tmp_path}/rows.jsonl").succeeded()
    names = [line.partition(" = ")[0] for line in lines if " = " in line]
    assert names[-4:] == ["chrF", "lowercase BLEU", "paper BLEU", "sacreBLEU"]
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["paper_bleu"] >= 0 and "compounds:split" in row["signatures"]["paper BLEU"]

    monkeypatch.setitem(sys.modules, "sacremoses", None)
    call("evaluate", *flags).refused(
        "paper BLEU needs the package sacremoses. Run pip install 'keras-transformer-toolkit[moses]'."
    )


def test_paper_bleu_requires_plain_text(call, home):
    call("evaluate", f"--run={home.run}", "--paper_bleu").refused("--paper_bleu tokenizes plain text with Moses")


def test_paper_bleu_supports_text_problems_only(monkeypatch):
    from keras_transformer.decoding.evaluation import check_paper_bleu

    for name, allowed in (("toy_ende", True), ("toy_ende_rev", True), ("multi30k_ende_tok", False), ("sort", False)):
        if allowed:
            check_paper_bleu(kt.problem(name))
        else:
            with pytest.raises(kt.UserError, match=name):
                check_paper_bleu(kt.problem(name))
