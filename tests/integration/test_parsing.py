"""Parsing end to end, as its user runs it: train, translate, evaluate; and learning it."""

import json

import pytest
from helpers import commands

import keras_transformer as kt
from keras_transformer.decoding.translator import Translator
from keras_transformer.metrics.parseval import parseval
from keras_transformer.runs.directory import Run
from keras_transformer.training.trainer import train
from keras_transformer.trees.tree import read_trees, split_words, tree_of

SENTENCES = ["the small dog sees a cat .", "", "Anna ( and he ) sleeps " + "and the small dog sees a cat " * 3]
FLAGS = (
    "--problem=toy_parsing", "--hparams=parsing_toy", "--set=problem.train_pairs=300", "--set=problem.vocab_size=300",
    *commands.SMALL, "--extra_length=60", "--train_steps=6",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned next to nothing."""
    home = tmp_path_factory.mktemp("parsing")
    commands.start("train", *FLAGS, cwd=home).succeeded()
    return home / "runs" / "toy_parsing-parsing_toy"


@pytest.fixture
def sentences(tmp_path):
    (tmp_path / "sentences.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    return tmp_path / "sentences.txt"


def words_of(tree):
    return [{"-LRB-": "(", "-RRB-": ")"}.get(word, word) for word in tree.words()]


def test_translate_gives_a_tree_for_each_line(call, run, sentences):
    out = call("translate", f"--run={run}", f"--input={sentences}").succeeded()
    assert out[1] == "" and len(out) == 3
    for line, sentence in zip(out, SENTENCES):
        assert not sentence or words_of(tree_of(line)) == split_words(sentence)
        assert "XX" not in line


def test_trees_may_be_over_several_lines_or_in_json(call, run, sentences):
    lines = call("translate", f"--run={run}", f"--input={sentences}").succeeded()
    pretty = call("translate", f"--run={run}", f"--input={sentences}", "--format=pretty").succeeded()
    assert list(map(str, read_trees(pretty))) == [line for line in lines if line] and len(pretty) > 3
    rows = call("translate", f"--run={run}", f"--input={sentences}", "--format=jsonl", "--nbest=2").succeeded()
    rows = [json.loads(row) for row in rows]
    assert [row["hypotheses"][0]["text"] for row in rows] == lines and len(rows[0]["hypotheses"]) == 2


def test_given_trees_are_scored(call, run, tmp_path):
    sentences = SENTENCES[::2]
    hypotheses = [found[0] for found in Translator.load(run).translate(sentences)]
    (tmp_path / "sentences").write_text("".join(f"{sentence}\n" for sentence in sentences))
    (tmp_path / "trees").write_text("".join(f"{one.text}\n" for one in hypotheses))
    flags = (f"--run={run}", f"--source={tmp_path}/sentences", f"--target={tmp_path}/trees")
    lines = [line.split("\t") for line in call("score", *flags, "--max_length=500").out.splitlines()]
    assert [float(line[0]) for line in lines] == pytest.approx([one.log_probability for one in hypotheses], rel=1e-3)
    (tmp_path / "trees").write_text(f"{hypotheses[0].text}\n(S (NN dog)\n")
    call("score", *flags).refused("trees:2: ", "is not closed")


def test_without_the_constraint_what_comes_is_made_a_tree(call, run, sentences):
    out = call("translate", f"--run={run}", f"--input={sentences}", "--unconstrained").succeeded()
    assert [words_of(tree_of(line)) if line else [] for line in out] == list(map(split_words, SENTENCES))


def test_what_is_too_long_is_told_and_gets_a_flat_tree(call, run, sentences):
    outcome = call("translate", f"--run={run}", f"--input={sentences}", "--max_source_length=12")
    assert outcome.status == 0 and outcome.out.splitlines()[1] == ""
    assert "line 3: its" in outcome.err and "it gets a flat tree" in outcome.err
    assert outcome.out.splitlines()[2].startswith("(TOP (XX Anna) (XX -LRB-)")


def test_pretty_is_for_trees(call, home):
    call("translate", f"--run={home.run}", "--input=/dev/null", "--format=pretty").refused("is no parser")


def test_evaluate_prints_evalbs_table_and_the_same_f1_from_files(call, run, tmp_path):
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
    assert figures["f1"] == pytest.approx(f1, abs=0.005) and figures["sentences"] == 500
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


def test_scoring_files_needs_neither_run_nor_keras(tmp_path):
    (tmp_path / "gold").write_text("(S (NP (N a)) (V b))\n(S (N a))\n")
    (tmp_path / "test").write_text("(S (N a) (V b))\n(S (N b))\n")
    outcome = commands.start("evaluate", "--gold=gold", "--test=test", cwd=tmp_path)
    assert outcome.status == 0 and "Bracketing Recall         =  50.00" in outcome.out
    assert outcome.err == "test: sentence 2: Words unmatch (a|b)\n"


def test_results_by_length_and_label_are_tables_and_in_rows(call, tmp_path):
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


@pytest.mark.parametrize(
    "flags, said",
    [
        (("--gold=gold",), "--gold=FILE --test=FILE"),
        (("--gold=gold", "--test=gold", "--run=x"), "without --run"),
        (("--gold=gold", "--test=gold", "--samples=1"), "--samples is of a run"),
        (("--run=x", "--by_label"), "--by_label is of trees in files"),
        (("--gold=-", "--test=-"), "cannot both be stdin"),
        ((), "--run, or --gold and --test"),
        (("--gold=gold", "--test=short"), "gold has 2 lines and short has 1"),
        (("--gold=open", "--test=gold"), "open:1: the tree that begins here is not closed"),
        (("--gold=gold", "--test=nowhere"), "nowhere does not exist"),
        (("--gold=gold", "--test=gold", "--evalb_params=gold"), "gold:1: "),
    ],
)
def test_what_cannot_be_scored_is_told(call, tmp_path, monkeypatch, flags, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gold").write_text("(S (N a))\n(S (N b))\n")
    (tmp_path / "short").write_text("(S (N a))\n")
    (tmp_path / "open").write_text("(S (N a)\n")
    call("evaluate", *flags).refused(said)


def test_a_larger_share_of_the_training_trees_has_those_of_a_smaller(tmp_path):
    shares = (0.25, 0.5, 1.0)
    problems = [kt.problem("toy_parsing", data_dir=tmp_path, train_pairs=1000, train_share=share) for share in shares]
    quarter, half, whole = ([pair for pair in problem.pairs("train")] for problem in problems)
    assert (len(quarter), len(half), len(whole)) == (251, 500, 1000)
    assert set(quarter) < set(half) < set(whole)
    assert len({problem.prepared_dir for problem in problems}) == 3
    assert all(len(list(problem.pairs("test"))) == 1000 for problem in problems)


def test_another_partition_of_gum_is_noticed(tmp_path):
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


def test_the_embedded_grammar_is_learned(tmp_path, fresh_seed):
    problem = kt.problem("toy_parsing", data_dir=tmp_path / "data", train_pairs=6000)
    hparams = kt.hparams("parsing_toy", seed=fresh_seed, train_steps=350, eval_steps=350, beam_size=1)
    run = train(problem, hparams, tmp_path / "run", report=print)
    (score,) = [row["score"] for row in Run.open(run.path).metrics() if row["kind"] == "validation"]
    assert score >= 80
