"""Tests of `evaluate`: scores, perplexity, results by length and comparisons, as text, JSON and result rows."""

import gzip
import json
import math
import shutil
from typing import NamedTuple

import keras
import numpy as np
import pytest
import sacrebleu
from helpers.commands import SMALL, TEXT, write_text
from helpers.errors import complaint
from helpers.logs import logged_lines
from helpers.paths import ROOT
from helpers.sharing import shared_folder

from keras_transformer import train
from keras_transformer.data.corpus import read_lines
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD
from keras_transformer.decoding import evaluation
from keras_transformer.decoding.evaluation import evaluate
from keras_transformer.decoding.evaluation_records import append_result, summary
from keras_transformer.decoding.search_options import SearchOptions
from keras_transformer.decoding.translator import Hypothesis, Translator
from keras_transformer.evaluate import report_text
from keras_transformer.metrics.bleu import exact_match, sacre_bleu
from keras_transformer.runs.run import Run
from keras_transformer.tasks.problem import load_problem

REFERENCES = [f"The {i}th cat of {i * i} Cats sat on the mat." for i in range(60)]
WORSE = [line.replace("sat on", "stood by") for line in REFERENCES]

# One source is blank, and so is the reference of another pair. No source has 21 to 50 words.
SOURCES = ["en 1 1", "", "en 2 4", *(" ".join(["en", *map(str, range(n))]) for n in range(10, 20)), "en 7 " * 26]
TARGETS = ["de 1 1", "de", "", *(" ".join(["de", *map(str, range(n))]) for n in range(10, 20)), "de 7 " * 26]

pytestmark = pytest.mark.usefixtures("eager_module")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Path of a read-only run of two updates on parallel text."""

    def make(path):
        write_text(path / "corpus", {"en": lines(SOURCES), "de": lines(TARGETS)}, split="test")
        flags = write_text(path / "corpus", TEXT)
        settings = ("--set=problem.vocab_size=40", "--hparams=toy", *SMALL, "--train_steps=2")
        train.main([*flags, *settings, f"--output_dir={path}/run"])

    return shared_folder(tmp_path_factory, "evaluated", make) / "run"


@pytest.fixture(scope="module")
def result(run):
    """Evaluation of `run` on its test split."""
    return evaluate(run, split="test")


@pytest.fixture
def no_decoding(monkeypatch):
    """Fail the test if it decodes anything."""
    monkeypatch.setattr(Translator, "translate", lambda *_, **__: pytest.fail("decoded"))


def lines(texts):
    return "".join(f"{text}\n" for text in texts)


def padded(sequences):
    longest = max(map(len, sequences))
    return np.array([ids + [PAD] * (longest - len(ids)) for ids in sequences])


# Scores


def test_all_scores_match_sacrebleu():
    outputs = [line.upper() for line in WORSE[:30]] + WORSE[30:]
    for name, known in {"multi30k_ende": ["sacreBLEU"], "multi30k_ende_tok": ["sacreBLEU", "tokenized BLEU"]}.items():
        problem = load_problem(name)
        chrf, lowercase, *rest = problem.all_scores(outputs, REFERENCES)
        assert rest == problem.score(outputs, REFERENCES) and [score.name for score in rest] == known
        assert (chrf.name, lowercase.name) == ("chrF", "lowercase BLEU")
        assert chrf.value == pytest.approx(sacrebleu.corpus_chrf(outputs, [REFERENCES]).score)
        assert lowercase.value == pytest.approx(sacrebleu.corpus_bleu(outputs, [REFERENCES], lowercase=True).score)
        assert lowercase.value > rest[0].value > 0
        assert chrf.signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|")
        assert lowercase.signature.startswith("nrefs:1|case:lc|eff:no|tok:13a|")


@pytest.mark.parametrize("split", ["validation", "test"])
def test_examples_warn_about_changed_files(run, tmp_path, split):
    changed = shutil.copytree(run, tmp_path / "run")
    manifest = json.loads((changed / "manifest.json").read_text())
    (path,) = (name for name in manifest["corpus"] if name.endswith("test.en"))
    manifest["corpus"][path] |= {"sha256": "0", "mtime_ns": 0}
    (changed / "manifest.json").write_text(json.dumps(manifest))
    opened = Run.open(changed)
    with logged_lines() as logged:
        assert evaluation._examples(opened, opened.problem, split)
    warning = f"{path} has changed since the run was trained, so the test split may contain training pairs"
    assert [line for line in logged if "training pairs" in line] == [warning] * (split == "test")


def test_evaluate_rejects_unknown_split(run):
    assert "unknown split 'dev'" in complaint(evaluate, run, split="dev")


def test_all_scores_of_symbols_are_their_scores():
    problem = load_problem("copy")
    assert problem.all_scores(["s1", "s2"], ["s1", "s3"]) == problem.score(["s1", "s2"], ["s1", "s3"])


# Perplexity


def test_perplexity_matches_model_with_blank_lines(run, result):
    model, tokenizer = Run.open(run).load_model(), Run.open(run).tokenizer
    sources, labels = (padded([[*ids, EOS] for ids in tokenizer.encode(texts)]) for texts in (SOURCES, TARGETS))
    decoder_input = np.concatenate([np.full((len(labels), 1), BOS), labels[:, :-1]], axis=1)
    logits = model((sources, decoder_input), training=False)
    log_p = np.array(keras.ops.log_softmax(keras.ops.cast(logits, "float32")))
    nll = -np.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0][labels != PAD].mean()
    assert result.nll() == pytest.approx(nll, rel=1e-4)
    assert result.perplexity == pytest.approx(math.exp(nll), rel=1e-3)
    assert len(result.scored[TARGETS.index("")].tokens) == 1


def test_perplexity_matches_training_log(run):
    (logged,) = (row for row in Run.open(run).metrics() if row["kind"] == "validation")
    found = evaluate(run, "last", "validation", SearchOptions(beam_size=1))
    assert found.nll() == pytest.approx(logged["nll"], rel=1e-4)
    assert found.perplexity == pytest.approx(logged["perplexity"], rel=1e-3)


# By length


def test_results_by_length_match_each_bucket(run, result):
    table = {row["words"]: row for row in result.by_length()}
    assert {words: row["lines"] for words, row in table.items()} == {"0": 1, "1-10": 2, "11-20": 10, "51+": 1}
    translator = Translator.load(run)
    for words, part in {"0": slice(1, 2), "11-20": slice(3, 13), "51+": slice(13, 14)}.items():
        outputs = result.outputs[part]
        scored = translator.score(SOURCES[part], TARGETS[part])
        nll = -sum(one.log_probability for one in scored) / sum(len(one.tokens) for one in scored)
        assert table[words]["score"] == sacrebleu.corpus_bleu(outputs, [TARGETS[part]], force=True).score
        assert table[words]["perplexity"] == pytest.approx(math.exp(nll), rel=1e-3)
        assert table[words]["length_ratio"] == len(" ".join(outputs).split()) / len(" ".join(TARGETS[part]).split())


# The command


def test_evaluate_json_matches_text_output(run, call, tmp_path):
    (tmp_path / "references.txt").write_text(lines(TARGETS))
    flags = (f"--run={run}", "--samples=2", "--by_length", f"--compare={tmp_path}/references.txt")
    text = call("evaluate", *flags).succeeded()
    printed = call("evaluate", *flags, "--json")
    found = json.loads(printed.out)
    assert (printed.status, printed.err) == (0, "")

    assert (found["problem"], found["split"], found["lines"]) == ("parallel_text", "test", len(SOURCES))
    assert found["checkpoint"] == {"name": "best", "steps": [2]}
    assert found["decoding"] == {"beam_size": 2, "alpha": 0.6, "extra_length": 3} and found["seconds"] > 0
    assert list(found["scores"]) == ["chrF", "lowercase BLEU", "sacreBLEU"]
    assert found["score_that_counts"] == "sacreBLEU"
    assert text[-6:] == [
        line
        for name, score in found["scores"].items()
        for line in (f"signature of {name}: {score['signature']}", f"{name} = {score['value']:.2f}")
    ]
    assert f"perplexity = {found['perplexity']:.2f} ({found['nll']:.4f} nats per token of the references)" in text
    assert math.exp(found["nll"]) == pytest.approx(found["perplexity"])

    cells = [line.split() for line in text]
    for row in found["by_length"]:
        ratio = f"{row['length_ratio']:.3f}"
        assert [row["words"], str(row["lines"]), f"{row['score']:.2f}", f"{row['perplexity']:.2f}", ratio] in cells
    assert sum(row["lines"] for row in found["by_length"]) == found["lines"]

    compared = found["comparison"]
    assert (compared["file"], compared["metric"]) == (f"{tmp_path}/references.txt", "sacreBLEU")
    assert compared["system"]["score"] == pytest.approx(found["scores"]["sacreBLEU"]["value"])
    assert compared["other"]["score"] == pytest.approx(100) and compared["p_value"] < 0.05
    difference = compared["system"]["score"] - compared["other"]["score"]
    assert f"difference = {difference:+.2f}, p = {compared['p_value']:.4f} by paired bootstrap" in text
    assert compared["signature"] in text and "seed:12345" in compared["signature"]
    for name, one in {"this run": compared["system"], compared["file"]: compared["other"]}.items():
        said = f"{name} {one['score']:.2f} {one['mean']:.2f} ± {one['interval']:.2f}".split()
        assert said in cells

    assert len(found["samples"]) == 2
    for sample in found["samples"]:
        for name, value in sample.items():
            assert f"{name}:".ljust(11) + value in text


def test_evaluate_reports_extra_length_0(run, call, monkeypatch):
    found = [Hypothesis("one", (), 0.0, 0.0)]
    monkeypatch.setattr(Translator, "translate", lambda self, texts, *_, **__: [found for _ in texts])
    outcome = call("evaluate", f"--run={run}", "--extra_length=0", "--json")
    assert json.loads(outcome.out)["decoding"]["extra_length"] == 0


def test_report_text_is_short_by_default(result, capsys):
    report_text(result, samples=0, by_length=False)
    text = capsys.readouterr().out.splitlines()
    assert len(text) == 8 and text[0].startswith(f"{len(SOURCES)} lines of test in ")
    assert text[-1] == str(result.scores[-1]) and text[-1].startswith("sacreBLEU = ")
    assert not {"comparison", "samples"} & summary(result).keys()


def test_report_text_aligns_table(result, capsys):
    report_text(result, samples=0, by_length=True)
    first, blank, *table, end, perplexity_line = capsys.readouterr().out.splitlines()[:9]
    assert (blank, end) == ("", "") and perplexity_line.startswith("perplexity = ")
    assert [line.split()[0] for line in table] == ["words", "0", "1-10", "11-20", "51+"]
    assert len({len(line) for line in table}) == 1


@pytest.mark.parametrize("perplexity", [math.inf, math.nan])
def test_summary_has_no_infinite_perplexity(result, monkeypatch, perplexity):
    monkeypatch.setattr(evaluation, "perplexity", lambda nll: perplexity)
    found = summary(result)
    assert found["perplexity"] is None and found["by_length"][0]["perplexity"] is None and found["nll"] == result.nll()


@pytest.mark.parametrize("score", [sacre_bleu, exact_match])
def test_evaluate_compare_with_own_outputs_has_no_difference(run, result, call, tmp_path, monkeypatch, score):
    monkeypatch.setattr(type(result.run.problem), "score", lambda _, *texts: [score(*texts)])
    (tmp_path / "outputs.gz").write_bytes(gzip.compress(lines(result.outputs).encode()))
    text = call("evaluate", f"--run={run}", f"--compare={tmp_path}/outputs.gz").succeeded()
    assert "difference = +0.00, p = 1.0000 by paired bootstrap" in text
    assert text[-1] == str(score(result.outputs, TARGETS))


def test_evaluate_output_with_line_end_shifts_no_line(run, call, tmp_path, monkeypatch):
    two_lines = [Hypothesis("two\nlines", (), 0.0, 0.0)]
    monkeypatch.setattr(Translator, "translate", lambda self, texts, *_, **__: [two_lines for _ in texts])
    call("evaluate", f"--run={run}", f"--output_dir={tmp_path}").succeeded()
    assert list(read_lines(tmp_path / "test.outputs.txt")) == ["two lines"] * len(SOURCES)
    assert list(read_lines(tmp_path / "test.references.txt")) == TARGETS


def test_result_rows_hold_all_figures(result, tmp_path, monkeypatch):
    append_result(tmp_path / "rows.jsonl", result)
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    for name, score in zip(("chrf", "lowercase_bleu", "sacrebleu"), result.scores, strict=True):
        assert row[name] == round(score.value, 2) and row["signatures"][score.name] == score.signature
    assert row["perplexity"] == pytest.approx(result.perplexity, rel=1e-4)
    assert row["parameters"] == result.run.load_model("last").count_params()
    for part, whole in zip(row["by_length"], result.by_length(), strict=True):
        assert part == {name: pytest.approx(cell, abs=1e-4) for name, cell in whole.items()}
    later = ("chrf", "lowercase_bleu", "perplexity", "parameters", "by_length")
    old = {name: value for name, value in row.items() if name not in later}
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from pages.scores import means, scores

    assert scores([row]) == scores([old]) and means([row, old]) == means([row])
    other = {**row, "seed": row["seed"] + 1, "sacrebleu": row["sacrebleu"] + 2}
    last = means([row, other, {**row, "split": "validation"}]).splitlines()[-1]
    assert f" {row['sacrebleu'] + 1:.2f} ± 1.41 |" in last and f" {row['seed']}, {other['seed']} |" in last
    # The mean covers only rows that are equal except for the seed.
    for more in (
        {"decoding": {**row["decoding"], "beam_size": 9}},
        {"backend": "torch"},
        {"training": {"precision": "x"}},
    ):
        assert means([row, {**other, **more}]) == means([row])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, ["other.txt does not exist", "--compare"]),
        ("", [f"other.txt must have as many lines as the test split of parallel_text ({len(SOURCES)}), got 0"]),
        ("de\n" * 3, [f"as many lines as the test split of parallel_text ({len(SOURCES)}), got 3"]),
        ("de\n" * 99, [f"as many lines as the test split of parallel_text ({len(SOURCES)}), got 99"]),
        (b"de\n\xff\n", ["other.txt:2: not UTF-8"]),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_evaluate_rejects_wrong_compare_file_before_decoding(run, call, tmp_path, no_decoding, flags, content, said):
    file = tmp_path / "other.txt"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    outcome = call("evaluate", f"--run={run}", f"--compare={file}", *flags)
    outcome.refused(*said)
    assert outcome.out == ""


def test_evaluate_cannot_compare_other_metrics(run, result, call, tmp_path, no_decoding, monkeypatch):
    def score(self, hypotheses, references):
        return [NamedTuple("Score", [("name", str)])("F1")]

    monkeypatch.setattr(type(result.run.problem), "score", score)
    (tmp_path / "other.txt").write_text(lines(TARGETS))
    call("evaluate", f"--run={run}", f"--compare={tmp_path}/other.txt").refused("got 'F1'. Omit --compare.")


@pytest.mark.parametrize("value", ["-1", "x"])
def test_evaluate_rejects_wrong_number_of_samples(run, call, no_decoding, value):
    call("evaluate", f"--run={run}", f"--samples={value}").refused("--samples", value)


def test_average_prints_scores_before_and_after(home, call, tmp_path, monkeypatch):
    shutil.copytree(home.run, tmp_path / "run")
    scores = [exact_match(["a", outputs], ["a", "b"]) for outputs in "cbc"]
    monkeypatch.setattr(evaluation, "score_checkpoints", lambda run, names: zip(names, scores, strict=True))
    *table, last = call("average", f"--run={tmp_path}/run", "--last=2").succeeded()
    names, printed = zip(*(line.strip().split("  ") for line in table))
    assert names == ("step 3", "step 6", "averaged") and list(printed) == [str(score) for score in scores]
    assert printed[0].startswith("exact match = 50.00") and "steps 3, 6" in last
    assert call("average", f"--run={tmp_path}/run", "--last=2", "--scores=off").succeeded() == [last]
