"""Tests of the command `score` with translations, unusual lines and invalid input."""

import gzip
import json
import math
import shutil

import pytest

from keras_transformer.data.corpus import read_lines
from keras_transformer.decoding.translator import Translator

pytestmark = pytest.mark.usefixtures("eager")

SOURCES = ["s1 s2 s3", "", "s4 s2", "   ", "s5 s6 unknown", "s7\u2028s1"]
TARGETS = ["s3 s2 s1", "s1", "", "", "s1 s6 s5", "s7"]


@pytest.fixture(scope="module")
def translator(home):
    return Translator.load(home.run)


@pytest.fixture
def score(home, call, tmp_path, load_once):
    """Return a function that runs `score` on two lists of lines, and returns the `Outcome` and the output lines."""
    load_once(home.run)

    def score(sources, targets, *flags, run=home.run):
        for name, lines in (("source", sources), ("target", targets)):
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
        files = [f"--{name}={tmp_path / name}" for name in ("source", "target", "output")]
        outcome, output = call("score", f"--run={run}", *files, *flags), tmp_path / "output"
        return outcome, list(read_lines(output)) if output.exists() else None

    return score


def figures(lines):
    return [tuple(map(float, line.split("\t"))) for line in lines]


def test_score_writes_figures_of_each_pair(score, translator):
    outcome, lines = score(SOURCES, TARGETS)
    expected = translator.score(SOURCES, TARGETS)
    for found, one in zip(figures(lines), expected, strict=True):
        assert found == pytest.approx((one.log_probability, len(one.tokens), one.score), abs=1e-5)
    tokens, log_p = (sum(column) for column in list(zip(*figures(lines)))[1::-1])
    nll = -log_p / tokens
    said = f"6 pairs, {tokens:.0f} tokens: perplexity = {math.exp(nll):.2f} ({nll:.4f} nats per token)"
    assert (outcome.status, outcome.out, outcome.err) == (0, "", said + "\n")
    for found, (log_p, size, _) in zip(figures(score(SOURCES, TARGETS, "--alpha=2")[1]), figures(lines), strict=True):
        assert found == pytest.approx((log_p, size, log_p / ((5 + size) / 6) ** 2), abs=1e-5)


def test_score_jsonl_holds_all_figures(score, translator):
    outcome, lines = score(SOURCES, TARGETS, "--format=jsonl", "--token_scores")
    for number, (line, one) in enumerate(zip(lines, translator.score(SOURCES, TARGETS), strict=True), start=1):
        entry = json.loads(line)
        assert (entry["line"], entry["source"], entry["target"]) == (number, SOURCES[number - 1], TARGETS[number - 1])
        assert entry["pieces"] == translator.tokenizer.pieces(one.tokens) and entry["tokens"] == len(one.tokens)
        assert sum(entry["token_log_probabilities"]) == pytest.approx(entry["log_probability"], abs=1e-4)
        assert entry["log_probability"] == pytest.approx(one.log_probability, abs=1e-5)
    assert "token_log_probabilities" not in score(SOURCES, TARGETS, "--format=jsonl")[1][0]


def test_score_warns_of_long_pairs_and_scores_others(score):
    sources, targets = [*SOURCES, " ".join(["s1"] * 500), "s1"], [*TARGETS, "s1", " ".join(["s1"] * 64)]
    outcome, lines = score(sources, targets)
    assert outcome.err.splitlines()[:2] == [
        "line 7 is not scored, because it has 501 tokens (--max_length=64)",
        "line 8 is not scored, because it has 65 tokens (--max_length=64)",
    ]
    assert lines[6:] == ["nan\t2\tnan", "nan\t65\tnan"] and lines[:6] == score(SOURCES, TARGETS)[1]
    entry = json.loads(score(sources, targets, "--format=jsonl", "--token_scores")[1][6])
    assert (entry["tokens"], entry["log_probability"], entry["score"]) == (2, None, None)
    assert "nan" not in "".join(score(sources, targets, "--max_length=501")[1])
    outcome, lines = score(sources[6:], targets[6:])
    assert outcome.status == 0 and "perplexity" not in outcome.err and len(lines) == 2


def test_score_is_independent_of_line_position(score, monkeypatch):
    monkeypatch.setattr("keras_transformer.score.CHUNK", 4)
    many = score(SOURCES * 5, TARGETS * 5)[1]
    for found, one in zip(figures(many), figures(score(SOURCES, TARGETS)[1]) * 5, strict=True):
        assert found == pytest.approx(one, abs=1e-5)


def test_score_of_ensemble_averages_probabilities(score, home, tmp_path):
    other = shutil.copytree(home.run, tmp_path / "other")
    both = figures(score(["s1"], [""], "--checkpoint=3,6")[1])[0]
    each = [figures(score(["s1"], [""], f"--checkpoint={step}")[1])[0] for step in (3, 6)]
    assert math.exp(both[0]) == pytest.approx(sum(math.exp(one[0]) for one in each) / 2, rel=1e-3)
    assert figures(score(["s1"], [""], f"--ensemble={other}")[1])[0] == pytest.approx(
        figures(score(["s1"], [""])[1])[0], abs=1e-5
    )


def test_score_reports_errors_and_keeps_partial_output(score, call, home, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_transformer.score.CHUNK", 2)
    outcome, lines = score(SOURCES, TARGETS[:5])
    outcome.refused("must have the same number of lines, got 6 and 5", "output.partial")
    assert lines is None and len(list(read_lines(tmp_path / "output.partial"))) >= 4
    score(SOURCES, [])[0].refused("target", "empty")
    call("score", f"--run={home.run}", "--source=-", "--target=-").refused("cannot both be stdin")
    score(SOURCES, TARGETS, "--token_scores")[0].refused("--token_scores needs --format=jsonl")
    score(SOURCES, TARGETS, run=tmp_path / "none")[0].refused("none")
    call("score", f"--run={home.run}", "--source=nowhere.en", "--target=nowhere.de").refused("nowhere.en")
    (tmp_path / "bytes").write_bytes(b"s1\n\xff\n")
    (tmp_path / "two").write_text("s1\ns1\n")
    call("score", f"--run={home.run}", f"--source={tmp_path}/bytes", f"--target={tmp_path}/two").refused(
        "bytes:2: not UTF-8"
    )


def test_score_reads_gzip_and_writes_stdout(call, home, tmp_path, score):
    for name, lines in (("s.gz", SOURCES), ("t.gz", TARGETS)):
        (tmp_path / name).write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    lines = call("score", f"--run={home.run}", f"--source={tmp_path}/s.gz", f"--target={tmp_path}/t.gz")
    assert lines.out.splitlines() == score(SOURCES, TARGETS)[1]
