"""The trial update in a child process: memory limits, the errors it reports, and signals."""

import signal
import sys
import time

import keras
import numpy as np
import pytest
from helpers.memory_trials import CONFIG, OPTIONS, VOCAB_SIZE

from keras_transformer.training import memory
from keras_transformer.training.signals import Interrupted, StopRequest


def test_trial_ends_at_a_signal():
    request = StopRequest()
    request.receive(signal.SIGTERM)
    began = time.monotonic()
    with pytest.raises(Interrupted) as ended:
        memory.try_update(OPTIONS, CONFIG, VOCAB_SIZE, (400, 20, 20), 8 << 30, request)
    assert ended.value.code == 128 + signal.SIGTERM and time.monotonic() - began < 10


@pytest.mark.skipif(sys.platform != "linux", reason="memory limits need Linux")
def test_trial_at_its_limit_reports_any_error_as_memory(tmp_path):
    """An extension that loses a MemoryError raises another error, or one without a message."""

    def tried(code, available):
        (tmp_path / "plugin.py").write_text(code)
        config = {**CONFIG, "plugins": [str(tmp_path / "plugin.py")], "model": "of_plugin"}
        return memory.try_update(OPTIONS, config, VOCAB_SIZE, (1000, 20, 20), available, StopRequest())

    take_all = "taken = []\ntry:\n    while True: taken.append(bytearray(1 << 20))\nexcept MemoryError: pass\n"
    lost = "raise SystemError('error return without exception set')\n"
    assert (found := tried(take_all + lost, 50 << 20))["fits"] is False and "SystemError" in found["error"]
    assert (found := tried(lost, 50 << 20))["fits"] is True and "SystemError" in found["error"]
    assert (found := tried(take_all + "raise KeyboardInterrupt('MemoryError')", 50 << 20))["fits"] is False, found


@pytest.mark.skipif(sys.platform != "linux", reason="memory limits need Linux")
def test_trial_peak_is_lower_with_accumulate_and_remat(monkeypatch):
    config = {**CONFIG, "hparams": {**CONFIG["hparams"], "batch_tokens": 20_000, "num_layers": 4}}
    stop = StopRequest()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    held = np.ones(1 << 30, np.uint8)  # must not count in the peak of a child
    whole, sliced, remat = (
        memory.try_update({**OPTIONS, **options}, config, VOCAB_SIZE, (1000, 20, 20), 8 << 30, stop)
        for options in ({}, {"accumulate": 8}, {"remat": True})
    )
    del held
    assert whole["fits"] and sliced["fits"] and remat["fits"]
    assert sliced["peak_mb"] < whole["peak_mb"] - 200
    if keras.backend.backend() == "tensorflow":  # on JAX, XLA for CPUs merges the repeated computation
        assert remat["peak_mb"] < whole["peak_mb"] - 200
    # 8,000 tokens × 40,000 tokens × 4 bytes are 1,220 MB; logits, exponentials and gradients would be three times that.
    assert memory.try_update(OPTIONS, CONFIG, 40_000, (400, 20, 20), 8 << 30, stop)["peak_mb"] < 2 * 1220
    refused = memory.try_update(OPTIONS, config, VOCAB_SIZE, (1000, 20, 20), 50 << 20, stop)
    assert not refused["fits"] and refused["error"], refused
