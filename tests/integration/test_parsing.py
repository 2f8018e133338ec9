"""End-to-end tests of parsing: train, translate, score and evaluate."""

import contextlib
import functools
import io
import itertools
import json
from pathlib import Path

import pytest
from helpers import commands
from helpers.sharing import shared_folder

import keras_transformer as kt
from keras_transformer.decoding import evaluation
from keras_transformer.decoding.translator import Translator
from keras_transformer.parsing.parseval import parseval
from keras_transformer.parsing.tree import read_trees, tree_of
from keras_transformer.runs.run import Run
from keras_transformer.train import main as train
from keras_transformer.utils.text import split_words

SENTENCES = ["the small dog sees a cat .", "", "Anna ( and he ) sleeps and the small dog sees a cat"]
FLAGS = (
    "--problem=toy_parsing", "--hparams=parsing_toy", "--set=problem.train_pairs=300", "--set=problem.vocab_size=300",
    *commands.SMALL, "--extra_length=60", "--train_steps=2",
)  # fmt: skip
EVALUATED = 30


@pytest.fixture
def run(tmp_path_factory, monkeypatch, load_once):
    """Return a run of two updates on the toy grammar. Its validation split has `EVALUATED` sentences."""
    problem = type(kt.problem("toy_parsing"))
    trees = problem.trees

    def fewer(self, split):
        return trees(self, split) if split == "train" else itertools.islice(trees(self, split), EVALUATED)

    monkeypatch.setattr(problem, "trees", fewer)

    def make(path):
        with contextlib.redirect_stdout(io.StringIO()):
            train([*FLAGS, f"--data_dir={path}/data", f"--output_dir={path}/run"])

    path = shared_folder(tmp_path_factory, "parsing", make)
    load_once(path / "run")
    return path / "run"


@pytest.fixture
def sentences(tmp_path):
    (tmp_path / "sentences.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    return tmp_path / "sentences.txt"


def words_of(tree):
    return [{"-LRB-": "(", "-RRB-": ")"}.get(word, word) for word in tree.words()]


def test_translate_writes_one_tree_per_line(call, run, sentences):
    lines = call("translate", f"--run={run}", f"--input={sentences}").succeeded()
    assert lines[1] == "" and len(lines) == 3
    for line, sentence in zip(lines, SENTENCES):
        assert not sentence or words_of(tree_of(line)) == split_words(sentence)
        assert "XX" not in line
    pretty = call("translate", f"--run={run}", f"--input={sentences}", "--format=pretty").succeeded()
    assert list(map(str, read_trees(pretty))) == [line for line in lines if line] and len(pretty) > 3
    rows = call("translate", f"--run={run}", f"--input={sentences}", "--format=jsonl", "--nbest=2").succeeded()
    rows = [json.loads(row) for row in rows]
    assert [row["hypotheses"][0]["text"] for row in rows] == lines and len(rows[0]["hypotheses"]) == 2


def test_score_takes_given_trees(call, run, tmp_path):
    sentences = SENTENCES[::2]
    hypotheses = [found[0] for found in Translator.load(run).translate(sentences)]
    (tmp_path / "sentences").write_text("".join(f"{sentence}\n" for sentence in sentences))
    (tmp_path / "trees").write_text("".join(f"{one.text}\n" for one in hypotheses))
    flags = (f"--run={run}", f"--source={tmp_path}/sentences", f"--target={tmp_path}/trees")
    lines = [line.split("\t") for line in call("score", *flags, "--max_length=500").out.splitlines()]
    assert [float(line[0]) for line in lines] == pytest.approx([one.log_probability for one in hypotheses], rel=1e-3)
    (tmp_path / "trees").write_text(f"{hypotheses[0].text}\n(S (NN dog)\n")
    call("score", *flags).refused("trees:2: ", "is not closed")


def test_translate_unconstrained_repairs_trees(call, run, sentences):
    out = call("translate", f"--run={run}", f"--input={sentences}", "--unconstrained").succeeded()
    assert [words_of(tree_of(line)) if line else [] for line in out] == list(map(split_words, SENTENCES))


def test_translate_gives_long_sentences_a_flat_tree(call, run, sentences):
    outcome = call("translate", f"--run={run}", f"--input={sentences}", "--max_source_length=12")
    assert outcome.status == 0 and outcome.out.splitlines()[1] == ""
    assert "line 3: its" in outcome.err and "wrote a flat tree" in outcome.err
    assert outcome.out.splitlines()[2].startswith("(TOP (XX Anna) (XX -LRB-)")


def test_translate_pretty_requires_a_parser(call, home):
    call("translate", f"--run={home.run}", "--input=/dev/null", "--format=pretty").refused("needs a parser")


def test_evaluate_prints_same_f1_for_run_and_files(call, run, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "evaluate", functools.cache(evaluation.evaluate))
    arguments = (f"--run={run}", "--split=validation", f"--output_dir={tmp_path}", f"--results={tmp_path}/row.jsonl")
    out = call("evaluate", *arguments).succeeded()
    of_all = float(out[-1].removeprefix("F1 of all sentences = "))
    f1 = float(out[-3].removeprefix("F1 = "))
    errors = int(out[-5].removeprefix("error sentences = ").replace(",", ""))
    assert "-- All --" in out and f"Bracketing FMeasure       = {f1:6.2f}" in out
    row = json.loads((tmp_path / "row.jsonl").read_text())
    assert row["f1"] == f1 and row["decoding"]["constraint"] is True
    assert (row["f1_of_all_sentences"], row["error_sentences"]) == (of_all, errors)
    assert row["settings"] == {"train_pairs": 300, "vocab_size": 300}
    files = (f"--gold={tmp_path}/validation.references.txt", f"--test={tmp_path}/validation.outputs.txt")
    outcome = call("evaluate", *files)
    *table, last = outcome.out.splitlines()
    assert table == (tmp_path / "validation.table.txt").read_text().splitlines()
    assert last == f"F1 of all sentences       = {of_all:6.2f} ({errors:,} errors and 0 skipped count as unmatched)"
    figures = json.loads(call("evaluate", *files, "--json").out)
    assert figures["f1"] == pytest.approx(f1, abs=0.005) and figures["sentences"] == EVALUATED
    assert figures["f1_of_all_sentences"] == pytest.approx(of_all, abs=0.005) and figures["errors"] == errors
    golds, tests = (
        (tmp_path / f"validation.{name}.txt").read_text().splitlines() for name in ("references", "outputs")
    )
    assert parseval(golds, tests).f1 == pytest.approx(f1, abs=0.005)
    validation = [line for line in Run.open(run).metrics() if line["kind"] == "validation"][-1]
    assert validation["score"] == validation["F1 of all sentences"] and validation["error sentences"] >= 0
    summary = json.loads(call("evaluate", arguments[0], "--split=validation", "--json").out)
    assert summary["score_that_counts"] == "F1 of all sentences"
    assert summary["scores"]["error sentences"]["value"] == errors


def test_evaluate_scores_files_without_keras(tmp_path):
    (tmp_path / "gold").write_text("(S (NP (N a)) (V b))\n(S (N a))\n")
    (tmp_path / "test").write_text("(S (N a) (V b))\n(S (N b))\n")
    outcome = commands.start("evaluate", "--gold=gold", "--test=test", cwd=tmp_path)
    assert outcome.status == 0 and "Bracketing Recall         =  50.00" in outcome.out
    assert outcome.err == "test: sentence 2: Words unmatch (a|b)\n"


def test_evaluate_reports_by_length_and_label(call, tmp_path):
    (tmp_path / "gold").write_text("(S (NP (N a)) (V b))\n(S (N a))\n" + "(S (N a)" + " (N b)" * 11 + ")\n")
    (tmp_path / "test").write_text("(S (N a) (V b))\n(S (N b))\n" + "(S (N a)" + " (N b)" * 11 + ")\n")
    files = (f"--gold={tmp_path}/gold", f"--test={tmp_path}/test", "--by_length", "--by_label")
    tables = [row.split() for row in call("evaluate", *files).out.splitlines()[-8:] if row]
    assert tables == [
        ["words", "sentences", "errors", "recall", "precision", "F1", "exact", "tags", "F1", "of", "all"],
        ["1-10", "2", "1", "50.00", "100.00", "66.67", "0.00", "100.00", "40.00"],
        ["11-20", "1", "0", "100.00", "100.00", "100.00", "100.00", "100.00", "100.00"],
        ["label", "gold", "test", "recall", "precision", "F1"],
        ["S", "2", "2", "100.00", "100.00", "100.00"],
        ["NP", "1", "0", "0.00", "0.00", "0.00"],
    ]
    row = json.loads(call("evaluate", *files, "--json").out)
    assert row["by_length"]["1-10"]["f1_of_all_sentences"] == 40
    assert row["by_length"]["1-10"]["recall"] == 50 and row["by_length"]["11-20"]["sentences"] == 1
    assert row["by_label"]["NP"] == {"gold": 1, "test": 0, "recall": 0, "precision": 0, "f1": 0}


def test_evaluate_compares_two_parsers(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gold, wrong, error = "(S (NP (N a)) (VP (V b)))\n", "(S (X (N a)) (VP (V b)))\n", "(S (NP (N a)) (VP (V c)))\n"
    texts = {"gold": gold * 40, "system": (gold * 2 + wrong + error) * 10, "other": (gold + wrong + error * 2) * 10}
    for name, text in texts.items():
        Path(name).write_text(text)
    files = ("--gold=gold", "--test=system", "--compare=other")
    row = json.loads(call("evaluate", *files, "--json", "--results=rows").out)
    assert json.loads(Path("rows").read_text())["comparison"] == row["comparison"]
    # Each sentence has three gold and three test brackets. A wrong parse matches two of them, an error sentence none.
    found = row["comparison"]
    assert found["system"]["score"] == row["f1_of_all_sentences"] == pytest.approx(100 * (3 + 3 + 2) / 12)
    assert found["difference"] == pytest.approx(100 * (3 + 3 + 2 - 3 - 2) / 12)
    outcome = call("evaluate", *files)
    text = outcome.out
    assert "other: sentence 3: Words unmatch (b|c)" in outcome.err
    assert ["other", "41.67"] in [line.split()[:2] for line in text.splitlines()]
    assert "difference = +25.00, p = 0.0010 by paired bootstrap" in text
    Path("rules").write_text("DELETE_LABEL X\n")
    # The rules ignore X, so a wrong parse has only two test brackets.
    found = json.loads(call("evaluate", *files, "--evalb_params=rules", "--json").out)["comparison"]
    assert found["difference"] == pytest.approx(200 * (8 - 5) / (12 + 11))
    assert found["signature"] == "EVALB's rules, rules|bs:1000|seed:12345"


def test_evaluate_compares_sentences_that_one_parser_skips(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("gold").write_text("(S (A a))\n\n")
    Path("system").write_text("(S (A a))\n\n")
    Path("other").write_text("(S (A a))\n(S (XX x))\n")
    found = json.loads(call("evaluate", "--gold=gold", "--test=system", "--compare=other", "--json").out)["comparison"]
    assert (found["system"]["score"], found["other"]["score"]) == (100, pytest.approx(200 / 3))


@pytest.mark.parametrize(
    "flags, said",
    [
        (("--gold=gold",), "both --gold=FILE and --test=FILE"),
        (("--gold=gold", "--test=gold", "--run=x"), "without --run"),
        (("--gold=gold", "--test=gold", "--samples=1"), "--samples requires --run"),
        (("--gold=gold", "--test=gold", "--repetition_penalty=2"), "--repetition_penalty requires --run"),
        (("--gold=gold", "--test=gold", "--split=validation"), "--split requires --run"),
        (("--gold=gold", "--test=gold", "--engine=ctranslate2"), "--engine requires --run"),
        (("--gold=gold", "--test=gold", "--alpha=0"), "--alpha requires --run"),
        (("--run=x", "--by_label"), "--by_label needs --gold and --test"),
        (("--gold=-", "--test=-"), "--compare and --evalb_params can be stdin"),
        (("--gold=gold", "--test=-", "--compare=-"), "--compare and --evalb_params can be stdin"),
        (("--gold=gold", "--test=gold", "--compare=short"), "gold and short must have the same number of sentences"),
        (("--gold=gold", "--test=gold", "--compare=nowhere"), "nowhere does not exist"),
        ((), "--run, or --gold and --test"),
        (("--gold=gold", "--test=short"), "gold and short must have the same number of sentences"),
        (("--gold=open", "--test=gold"), "open:1: 1 missing ')'; close each '(' in the same line"),
        (("--gold=gold", "--test=nowhere"), "nowhere does not exist"),
        (("--gold=gold", "--test=gold", "--evalb_params=gold"), "gold:1: "),
    ],
)
def test_evaluate_rejects_wrong_files_and_flags(call, tmp_path, monkeypatch, flags, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gold").write_text("(S (N a))\n(S (N b))\n")
    (tmp_path / "short").write_text("(S (N a))\n")
    (tmp_path / "open").write_text("(S (N a)\n(S (N b))\n")
    call("evaluate", *flags).refused(said)


def test_train_share_is_nested(tmp_path):
    shares = (0.25, 0.5, 1.0)
    problems = [kt.problem("toy_parsing", data_dir=tmp_path, train_pairs=200, train_share=share) for share in shares]
    quarter, half, whole = ([pair for pair in problem.pairs("train")] for problem in problems)
    assert (len(quarter), len(half), len(whole)) == (51, 100, 200)
    assert set(quarter) < set(half) < set(whole)
    assert len({problem.prepared_dir for problem in problems}) == 3
    assert all(len(list(problem.pairs("test"))) == 1000 for problem in problems)


def test_gum_notices_another_partition(tmp_path):
    (tmp_path / "gum").mkdir()
    parts = {"train": "one", "dev": "two", "test": "three"}
    for name in parts.values():
        (tmp_path / "gum" / f"{name}.ptb").write_text(f"(ROOT (S (N {name}) (V goes)))\n" * 9)

    def write_splits(parts):
        text = "".join(f"## {part}\n\n * {name}\n\n" for part, name in parts.items())
        (tmp_path / "gum" / "splits.md").write_text(text)

    write_splits(parts)
    arguments = {"raw_dir": tmp_path / "gum", "data_dir": tmp_path / "data", "vocab_size": 300}
    old = kt.problem("parsing_gum", **arguments).prepare().store.fingerprint
    write_splits({**parts, "dev": "three", "test": "two"})
    assert kt.problem("parsing_gum", **arguments).prepare().store.fingerprint != old
