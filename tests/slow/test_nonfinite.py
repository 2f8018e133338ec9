"""Tests of non-finite gradients, which stop a run unless `--on_nonfinite=skip` is set."""

import numpy as np
import pytest
from helpers import commands

from keras_transformer.data.token_batches import TokenBatches
from keras_transformer.runs.run import Run

SETTINGS = (*commands.SMALL, "--hparams=toy", "--set=problem.vocab_size=40", "--dropout=0.2", "--train_steps=6",
            "--best_metric=nll", "--decode_steps=6")  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Return command flags that select a small corpus of text files."""
    return commands.write_text(tmp_path_factory.mktemp("text") / "raw", commands.TEXT)


@pytest.fixture
def train(call, text, tmp_path):
    """Return a function that runs `train`. Its arguments are the name of the output directory and additional flags."""
    return lambda name, *flags: call("train", *text, *SETTINGS, f"--output_dir={tmp_path}/{name}", *flags)


@pytest.fixture
def spoil(monkeypatch):
    """Return a function that makes the loss of the given updates NaN. The first update is number 1."""
    getitem = TokenBatches.__getitem__

    def begin(*updates):
        def spoiled(self, index):
            inputs, labels, weights = getitem(self, index)
            bad = self.endless and self.start + index + 1 in updates
            return inputs, labels, np.full_like(weights, np.nan) if bad else weights

        monkeypatch.setattr(TokenBatches, "__getitem__", spoiled)

    return begin


def final(path):
    """Return the last checkpoint, which must be at step 6, as {(part, path): array}."""
    arrays, state = Run.open(path).checkpoints.load("last")
    assert state["step"] == 6
    return {(part, name): array for part, values in arrays.items() for name, array in values.items()}


def nonfinite_rows(path):
    """Return the log rows of non-finite updates."""
    return [row for row in Run.open(path).metrics() if row["kind"] == "nonfinite"]


def assert_same(path, other):
    expected = final(other)
    assert final(path).keys() == expected.keys()
    for name, array in final(path).items():
        np.testing.assert_array_equal(array, expected[name])
        assert np.isfinite(array).all()


def test_train_stops_at_or_skips_nonfinite_updates(train, spoil, tmp_path):
    spoil(5)
    outcome = train("run")
    assert outcome.status == 2 and "Traceback" not in outcome.err
    (row,) = nonfinite_rows(tmp_path / "run")
    assert (row["step"], row["updates"]) == (5, 1)
    split = Run.open(tmp_path / "run").problem.prepare().store.split("train")
    assert len(set(row["rows"])) > 5 and max(row["rows"]) < len(split)
    said = outcome.err.splitlines()[-1]
    first_rows = ", ".join(map(str, row["rows"][:5]))
    for words in (
        f"not finite in update 5 (training pairs {first_rows}, …)",
        "is from step 3",
        "--on_nonfinite=skip",
    ):
        assert words in said
    assert Run.open(tmp_path / "run").checkpoints.steps() == [3]

    out = train("run", "--on_nonfinite=skip").succeeded_with_warnings()
    assert [line for line in out if "update 5" in line and "skipped" in line]
    rows = [row for row in Run.open(tmp_path / "run").metrics() if row["kind"] == "train"]
    assert all(row["gradient_norm"] > 0 for row in rows)
    assert train("other", "--on_nonfinite=skip").status == 0
    assert_same(tmp_path / "run", tmp_path / "other")  # `other` had --on_nonfinite=skip from the start

    spoil(5, 7, 8)
    outcome = train("run", "--on_nonfinite=skip", "--max_skipped=2", "--train_steps=12")
    assert outcome.status == 2
    for words in ("in 2 updates, first in update 7", "the run skipped 3 updates, more than --max_skipped=2"):
        assert words in outcome.err
    assert Run.open(tmp_path / "run").checkpoints.steps()[-1] == 6


def test_train_leaves_no_checkpoint_after_first_nan(train, spoil, tmp_path):
    spoil(*range(1, 7))
    outcome = train("run")
    assert outcome.status == 2
    assert "in 3 updates, first in update 1" in outcome.err and "no checkpoint before" in outcome.err
    assert Run.open(tmp_path / "run").checkpoints.steps() == []
