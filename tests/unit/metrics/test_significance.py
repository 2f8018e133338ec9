"""Tests of the paired bootstrap with BLEU, exact match and F1."""

import os

import numpy as np
import pytest
import sacrebleu
from sacrebleu.significance import PairedTest

from keras_transformer.metrics.significance import paired_bootstrap
from keras_transformer.parsing.parseval import F1_OF_ALL
from keras_transformer.utils.errors import UserError

REFERENCES = [f"The {i}th cat of {i * i} Cats sat on the mat." for i in range(60)]
WORSE = [line.replace("sat on", "stood by") for line in REFERENCES]


METRICS = ["sacreBLEU", "tokenized BLEU", "exact match"]


@pytest.mark.parametrize("metric", METRICS)
def test_bootstrap_of_equal_outputs_has_no_difference(metric):
    for outputs in (WORSE, REFERENCES):
        found = paired_bootstrap(metric, outputs, list(outputs), REFERENCES)
        assert (found.difference, found.p_value) == (0.0, 1.0) and found.system == found.other


@pytest.mark.parametrize("metric", METRICS)
def test_bootstrap_detects_better_outputs_symmetrically(metric):
    better = REFERENCES[:40] + WORSE[40:]
    found, swapped = (paired_bootstrap(metric, *pair, REFERENCES) for pair in ((better, WORSE), (WORSE, better)))
    assert found.difference > 10 and found.p_value < 0.01
    assert found.system.score - 2 < found.system.mean < found.system.score + 2 and found.system.interval > 1
    assert (swapped.system, swapped.other, swapped.p_value) == (found.other, found.system, found.p_value)
    assert swapped.difference == -found.difference


@pytest.mark.parametrize("metric", METRICS)
def test_bootstrap_ignores_chance_differences(metric):
    outputs, others = REFERENCES[:11] + WORSE[11:], WORSE[:50] + REFERENCES[50:]
    found = paired_bootstrap(metric, outputs, others, REFERENCES)
    assert found.difference > 0 and 0.2 < found.p_value <= 1


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("lines", "smallest"), [(1, 1.0), (2, 0.5), (5, 0.0625)])
def test_bootstrap_of_few_lines_has_no_small_p_value(metric, lines, smallest):
    found = paired_bootstrap(metric, REFERENCES[:lines], WORSE[:lines], REFERENCES[:lines])
    assert found.difference > 10 and found.p_value == smallest


def test_bootstrap_of_bleu_matches_sacrebleu(monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    outputs, others = REFERENCES[:16] + WORSE[16:], WORSE[:50] + REFERENCES[50:]
    found = paired_bootstrap("sacreBLEU", outputs, others, REFERENCES)
    assert os.environ["SACREBLEU_SEED"] == "7" and "|bs:1000|seed:12345|" in found.signature
    monkeypatch.delenv("SACREBLEU_SEED")
    metric = sacrebleu.metrics.BLEU(force=True)
    signatures, results = PairedTest([("b", others), ("a", outputs)], {"BLEU": metric}, [REFERENCES], "bs", 1000)()
    other, system = results["BLEU"]
    assert (found.p_value, found.signature) == (system.p_value, str(signatures["BLEU"]))
    assert vars(found.system) == {"score": system.score, "mean": system.mean, "interval": system.ci}
    assert vars(found.other) == {"score": other.score, "mean": other.mean, "interval": other.ci}


def test_bootstrap_of_exact_match_near_normal_approximation():
    # In 20 of 100 lines only the first system is right, in 10 only the second. So z = 10 / √(30 − 10²/100) = 1.86.
    # The two-sided p is 0.063, or 0.078 with a continuity correction.
    references = ["right"] * 100
    outputs = ["right"] * 50 + ["wrong"] * 50
    others = ["wrong"] * 20 + ["right"] * 40 + ["wrong"] * 40
    found = paired_bootstrap("exact match", outputs, others, references)
    assert (found.system.score, found.other.score) == (50.0, 40.0)
    assert 0.05 < found.p_value < 0.11
    assert found.system.interval == pytest.approx(1.96 * 5, abs=1.5)


def test_bootstrap_of_f1_resamples_sentences():
    gold = "(S (NP (N a)) (VP (V b)))"
    wrong, error = gold.replace("NP", "X"), gold.replace("V b", ". b")
    references, outputs, others = [gold] * 40, [gold, gold, wrong, error] * 10, [gold, wrong, error, error] * 10
    found = paired_bootstrap(F1_OF_ALL, outputs, others, references)
    matched = [[3, 3, 2, 0] * 10, [3, 2, 0, 0] * 10]
    tested = [[3, 3, 3, 2] * 10, [3, 3, 2, 2] * 10]
    rng, drawn = np.random.default_rng(12345), [[], []]
    for _ in range(1000):
        lines = rng.integers(40, size=40)
        for system in range(2):
            right, ours = (sum(counts[system][line] for line in lines) for counts in (matched, tested))
            drawn[system].append(200 * right / (3 * 40 + ours))
    assert found.system.score == pytest.approx(200 * 80 / (120 + 110)) and found.other.score < found.system.score
    assert (found.system.mean, found.other.mean) == tuple(pytest.approx(np.mean(one)) for one in drawn)
    assert found.p_value < 0.01 and found.signature == "EVALB's rules, COLLINS.prm, labelled|bs:1000|seed:12345"
    assert paired_bootstrap(F1_OF_ALL, others, others, references).p_value == 1
    assert paired_bootstrap(F1_OF_ALL, others, outputs, references).p_value == found.p_value


def test_bootstrap_of_f1_counts_a_blank_last_sentence():
    gold = ["(S (A a))", ""]
    found = paired_bootstrap(F1_OF_ALL, ["(S (A a))", ""], ["(S (A a))", "(S (XX x))"], gold)
    assert (found.system.score, found.other.score) == (100.0, pytest.approx(200 / 3))


def test_bootstrap_rejects_unknown_metric():
    with pytest.raises(UserError, match="'F1'"):
        paired_bootstrap("F1", WORSE, WORSE, REFERENCES)
