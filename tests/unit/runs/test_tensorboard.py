"""Tests of TensorBoard events, which must match the rows of metrics.jsonl even after a process was killed."""

import itertools
import time

import pytest

from keras_transformer.runs import tensorboard
from keras_transformer.runs.run import Run
from keras_transformer.runs.tensorboard import Events, open_events

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator  # noqa: E402


def read(folder):
    accumulator = EventAccumulator(str(folder), purge_orphaned_data=True)
    return accumulator.Reload()


def scalars(accumulator, tag):
    return [(event.step, *event.tensor_proto.float_val) for event in accumulator.Tensors(tag)]


def numbers(row):
    return {name for name, value in row.items() if isinstance(value, (int, float)) and name != "step"}


def test_events_match_metrics_log(home):
    run = Run.open(home.run)
    found, lines = read(run.path / "tensorboard"), run.metrics()
    shown = {"validation/samples"}
    for kind in ("train", "validation"):
        rows = [row for row in lines if row["kind"] == kind]
        for name in set.union(*map(numbers, rows)):
            assert scalars(found, f"{kind}/{name}") == [
                (row["step"], pytest.approx(row[name], rel=1e-5)) for row in rows if row[name] is not None
            ]
            shown.add(f"{kind}/{name}")
    assert set(found.Tags()["tensors"]) == shown
    wanted = {"train": "loss learning_rate gradient_norm tokens_per_second", "validation": "nll nll_shuffled score"}
    assert {f"{kind}/{name}" for kind, names in wanted.items() for name in names.split()} < shown
    (last, *_) = reversed(found.Tensors("validation/samples"))
    samples = [row for row in lines if row["kind"] == "validation"][-1]["samples"]
    texts = [text.decode() for text in last.tensor_proto.string_val]
    assert len(texts) == len(samples) == 5
    for text, sample in zip(texts, samples):
        for name in ("source", "output", "reference"):
            assert sample[name] in text


def test_events_after_kill_replace_later_updates(monkeypatch, tmp_path):
    clock = itertools.count(1_700_000_000)  # TensorBoard sorts files by creation time in whole seconds
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))

    def train(first, *steps):
        log = Events(tmp_path)
        log.write({"kind": "start", "step": first, "devices": 1})
        for step in steps:
            log.write({"kind": "train", "step": step, "loss": float(len(steps)), "nll": None})

    train(0, 1, 2, 3)
    train(1, 2, 3, 4, 5)
    found = read(tmp_path)
    assert scalars(found, "train/loss") == [(1, 3.0), (2, 4.0), (3, 4.0), (4, 4.0), (5, 4.0)]
    assert found.Tags()["tensors"] == ["train/loss"]


def test_event_texts_are_escaped():
    text = tensorboard._as_text({"source": "a\n# b *c*", "output": "<b>", "reference": ""})
    assert text == "    source:    a # b *c*\n    output:    <b>\n    reference: "


def test_events_need_tensorboard(monkeypatch, tmp_path):
    monkeypatch.setattr(tensorboard.importlib.util, "find_spec", lambda name: None)
    assert open_events(tmp_path / "tensorboard") is None and not list(tmp_path.iterdir())


def test_events_warn_once_when_unwritable(tmp_path, capsys):
    (tmp_path / "tensorboard").write_text("a file in the way")
    log = Events(tmp_path / "tensorboard")
    for step in (1, 2):
        log.write({"kind": "train", "step": step, "loss": 1.0})
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("cannot write more events for TensorBoard: ") and err.count("\n") == 1
