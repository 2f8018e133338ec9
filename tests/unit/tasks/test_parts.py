"""Tests of `score_parts`, which scores the parts of a split and averages the scores."""

from types import SimpleNamespace

import pytest

from keras_transformer.metrics.bleu import Score
from keras_transformer.tasks.parts import score_parts


def scorer(name):
    """Return a stand-in for a problem. Its score is the number of equal lines, and its score signature is `name`."""

    def score(hypotheses, references):
        return [Score("equal", float(sum(a == b for a, b in zip(hypotheses, references, strict=True))), name)]

    return SimpleNamespace(score=score, parts={})


@pytest.fixture
def problem():
    problem = scorer("all")
    problem.parts = {"a": scorer("first"), "b": scorer("second")}
    return problem


def test_score_parts_without_parts_scores_all(problem):
    assert score_parts(problem, None, ["x", "y"], ["x", "y"]) == ([Score("equal", 2.0, "all")], {})


def test_score_parts_returns_mean_of_parts(problem):
    scores, parts = score_parts(problem, ["a", "b", "a"], ["x", "y", "z"], ["x", "-", "z"])
    assert parts == {"a": [Score("equal", 2.0, "first")], "b": [Score("equal", 0.0, "second")]}
    assert scores == [Score("equal", 1.0, "mean of a, b: first and second")]


def test_score_parts_of_one_part_is_its_score(problem):
    scores, parts = score_parts(problem, ["b"], ["x"], ["x"])
    assert scores == parts["b"] == [Score("equal", 1.0, "second")]
