"""Updates whose gradients are not finite end a run or are skipped, up to a maximum; nothing is lost either way."""

import json

import numpy as np
import pytest
from helpers import commands

from keras_transformer.data.token_batches import TokenBatches
from keras_transformer.runs.run import Run

SETTINGS = (*commands.SMALL, "--hparams=toy", "--set=problem.vocab_size=40", "--dropout=0.2", "--train_steps=6",
            "--best_metric=nll", "--decode_steps=6")  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Flags of a corpus in files, prepared once."""
    return commands.write_text(tmp_path_factory.mktemp("text") / "raw", commands.TEXT)


@pytest.fixture
def train(call, text, tmp_path):
    """Trains in a directory, with more flags."""
    return lambda name, *flags: call("train", *text, *SETTINGS, f"--output_dir={tmp_path}/{name}", *flags)


@pytest.fixture
def spoil(monkeypatch):
    """Makes the loss of some updates, numbered from 1, NaN."""
    getitem = TokenBatches.__getitem__

    def begin(*updates):
        def spoiled(self, index):
            inputs, labels, weights = getitem(self, index)
            bad = self.endless and self.start + index + 1 in updates
            return inputs, labels, np.full_like(weights, np.nan) if bad else weights

        monkeypatch.setattr(TokenBatches, "__getitem__", spoiled)

    return begin


def final(path):
    """{(part, path): array} of the last checkpoint, of step 6."""
    arrays, state = Run.open(path).checkpoints.load("last")
    assert state["step"] == 6
    return {(part, name): array for part, values in arrays.items() for name, array in values.items()}


def assert_same(path, other):
    expected = final(other)
    assert final(path).keys() == expected.keys()
    for name, array in final(path).items():
        np.testing.assert_array_equal(array, expected[name])
        assert np.isfinite(array).all()


def test_train_stops_or_skips_at_updates_that_are_not_finite(train, spoil, tmp_path):
    spoil(5)
    outcome = train("run")
    assert outcome.status == 2 and "Traceback" not in outcome.err
    said = outcome.err.splitlines()[-1]
    sentences = tmp_path / "run" / "nonfinite-000000005.jsonl"
    for words in ("update 5: the loss or a gradient is not finite", sentences, "is of step 3", "--on_nonfinite=skip"):
        assert str(words) in said
    assert Run.open(tmp_path / "run").checkpoints.steps() == [3]
    pairs = [json.loads(line) for line in sentences.read_text().splitlines()]
    assert len(pairs) > 5
    for pair in pairs:
        (lines,) = pair["lines"]
        for path, number in lines.items():
            side = "source" if path.endswith(".en") else "target"
            with open(path) as file:
                assert file.read().splitlines()[number - 1] == pair[side]
    (first,) = pairs[0]["lines"]
    assert f"train.en:{next(iter(first.values()))}" in said

    out = train("run", "--on_nonfinite=skip").succeeded_with_warnings()
    assert [line for line in out if "update 5" in line and "skipped" in line]
    rows = [row for row in Run.open(tmp_path / "run").metrics() if row["kind"] == "train"]
    assert all(row["gradient_norm"] > 0 for row in rows)
    assert train("other", "--on_nonfinite=skip").status == 0
    assert_same(tmp_path / "run", tmp_path / "other")  # which skipped from the start

    spoil(5, 8)
    outcome = train("run", "--on_nonfinite=skip", "--max_skipped=1", "--train_steps=12")
    assert outcome.status == 2 and "update 8" in outcome.err and "more than --max_skipped=1" in outcome.err
    assert Run.open(tmp_path / "run").checkpoints.steps()[-1] == 6


def test_train_leaves_no_checkpoint_of_a_first_nan(train, spoil, tmp_path):
    spoil(*range(1, 7))
    outcome = train("run")
    assert outcome.status == 2 and "update 1:" in outcome.err and "no checkpoint was written before" in outcome.err
    assert Run.open(tmp_path / "run").checkpoints.steps() == []
