"""Tests of memory: the estimate, the check that the weights fit, and the error if training runs out of memory."""

import keras
import numpy as np
import pytest
from helpers.commands import REVERSE
from keras import ops

import keras_transformer as kt
from keras_transformer.data.batch_plan import BatchPlan
from keras_transformer.data.length_index import LengthIndex
from keras_transformer.models.seq2seq_model import Seq2SeqModel
from keras_transformer.training import memory, trainer
from keras_transformer.utils.errors import UserError

HPARAMS = kt.HParams(num_layers=1, d_model=64, d_ff=512, num_heads=2, batch_tokens=8000)
VOCAB_SIZE = 4000


def run_out_of_memory(*_, **__):
    """Make the backend allocate an array that is larger than the address space."""
    return ops.convert_to_numpy(ops.zeros((10**8, 10**7)))


@pytest.mark.parametrize(
    "owner, name, flags",
    [(Seq2SeqModel, "fit", []), (trainer, "log_summary", []), (trainer, "build_model", ["--dry_run"])],
)
def test_train_reports_memory_errors_with_flags(call, tmp_path, monkeypatch, owner, name, flags):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(owner, name, run_out_of_memory)
    name = "RESOURCE_EXHAUSTED" if keras.backend.backend() == "jax" else "ResourceExhausted"
    said = "try --accumulate=6 or --remat or --precision=bfloat16, or a smaller --batch_tokens in another --output_dir"
    outcome = call("train", *REVERSE, "--accumulate=3", *flags)
    outcome.refused("training ran out of memory (", name, "stop other programs", said, "but a smaller --beam_size does")


def test_memory_errors_name_only_flags_that_save_memory():
    with pytest.raises(UserError, match=r"try --accumulate=4, or a smaller --batch_tokens in"):
        with memory.memory_errors(kt.TrainOptions(accumulate=2, remat=True, precision="float16")):
            run_out_of_memory()


@pytest.mark.parametrize("error", [MemoryError(), SystemError("MemoryError: unknown"), RuntimeError("std::bad_alloc")])
def test_memory_errors_recognizes_library_errors(error):
    with pytest.raises(UserError, match="ran out of memory"), memory.memory_errors(kt.TrainOptions()):
        raise error


@pytest.mark.parametrize("error", [ImportError("no plug-in"), UserError("the server has an OOM limit")])
def test_memory_errors_reraises_other_errors(error):
    with pytest.raises(type(error), match=str(error)), memory.memory_errors(kt.TrainOptions()):
        raise error


def test_largest_shape_has_longest_pairs():
    lengths = np.array([4] * 600 + [20] * 600)
    assert memory.largest_shape(HPARAMS, VOCAB_SIZE, BatchPlan(LengthIndex.from_lengths(lengths, lengths), 8000)) == (
        400,
        20,
        20,
    )


def test_available_bytes_is_unknown_on_accelerators(monkeypatch):
    monkeypatch.setattr(memory, "on_cpu", lambda: True)
    monkeypatch.setattr(memory, "proc_entries", lambda path: {"MemAvailable:": "5"})
    assert memory.available_bytes() == 5 << 10
    monkeypatch.setattr(memory, "on_cpu", lambda: False)
    assert memory.available_bytes() is None


def test_estimate_grows_with_model_and_batch():
    estimate = memory.estimated_bytes(HPARAMS, VOCAB_SIZE, 400, 20, 20)
    assert memory.estimated_bytes(HPARAMS, VOCAB_SIZE, 400, 40, 20) > estimate
    assert memory.estimated_bytes(HPARAMS, VOCAB_SIZE, 400, 20, 40) > estimate
    assert memory.estimated_bytes(HPARAMS.replace(d_ff=2048), VOCAB_SIZE, 400, 20, 20) > estimate
    twice = HPARAMS.replace(r_drop=1.0, dropout=0.1)
    assert memory.estimated_bytes(twice, VOCAB_SIZE, 400, 20, 20) == (
        memory.estimated_bytes(HPARAMS, VOCAB_SIZE, 800, 20, 20)
    )
    deep = HPARAMS.replace(num_layers=6)
    assert memory.estimated_bytes(deep, VOCAB_SIZE, 400, 20, 20, remat=True) < (
        memory.estimated_bytes(deep, VOCAB_SIZE, 400, 20, 20) / 2
    )
    shallow = memory.estimated_bytes(deep.replace(num_decoder_layers=1), VOCAB_SIZE, 400, 20, 20)
    assert estimate < shallow < memory.estimated_bytes(deep, VOCAB_SIZE, 400, 20, 20) / 1.5
    learned = memory.estimated_bytes(HPARAMS.replace(positions="learned", max_length=9), VOCAB_SIZE, 400, 20, 20)
    assert learned == estimate + 4 * 5 * 9 * HPARAMS.d_model  # weights, gradients and optimizer state
    # Doubling the vocabulary adds memory for weights, gradients and two optimizer slots. It adds less than the logits
    # of all tokens, because training computes logits in chunks.
    more = memory.estimated_bytes(HPARAMS, 2 * VOCAB_SIZE, 400, 20, 20) - estimate
    assert 4 * 4 * VOCAB_SIZE * HPARAMS.d_model < more < 4 * 8000 * VOCAB_SIZE


def test_summary_compares_estimate_with_free_memory(call, tmp_path, monkeypatch):
    def memory_line():
        (line,) = [line for line in call("train", *REVERSE, "--dry_run").succeeded() if line.startswith("  memory ")]
        return line

    monkeypatch.chdir(tmp_path)
    assert memory_line().endswith(" MB for the largest update (51 pairs of 10 and 10 tokens)")
    monkeypatch.setattr(memory, "proc_entries", lambda path: {"MemAvailable:": "1000"})
    assert "; only 1 MB is free: try --accumulate or --remat, or" in memory_line()
