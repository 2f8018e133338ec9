"""Tests of `Stopwatch` and of the format of durations."""

from keras_transformer.utils.timing import Stopwatch, duration


def test_stopwatch_adds_up(monkeypatch):
    times = iter([1.0, 3.0, 10.0, 10.5])
    monkeypatch.setattr("keras_transformer.utils.timing.time.monotonic", lambda: next(times))
    stopwatch = Stopwatch()
    for _ in range(2):
        with stopwatch:
            pass
    assert stopwatch.seconds == 2.5
    assert stopwatch.reset() == 2.5 and stopwatch.seconds == 0


def test_duration_format():
    assert [duration(seconds) for seconds in (0.4, 61, 3599.6, 36000)] == ["0:00:00", "0:01:01", "1:00:00", "10:00:00"]
