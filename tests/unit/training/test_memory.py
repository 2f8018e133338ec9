"""The trial of the largest batch: its report, the remedies it names, and the estimate; without child processes."""

from pathlib import Path

import numpy as np
import pytest
from helpers.memory_trials import CONFIG, HPARAMS, OPTIONS, VOCAB_SIZE

from keras_transformer.data.batch_plan import BatchPlan
from keras_transformer.runs.run import Run
from keras_transformer.training import memory
from keras_transformer.training.signals import StopRequest
from keras_transformer.utils.errors import UserError


def plan(batch_tokens=8000):
    """Return a plan in which half of the sentences are short."""
    lengths = np.array([4] * 600 + [20] * 600)
    return BatchPlan(lengths, lengths, batch_tokens)


def check(monkeypatch, fits, path="none", **options):
    """Run `check_memory` with `fits` as the trial; return the trials and the reported lines."""
    questions, said = [], []

    def answer(settings, config, vocab_size, shape, available, stop):
        questions.append({"settings": settings, "shape": shape, "available": available})
        return fits(questions[-1])

    monkeypatch.setattr(memory, "try_update", answer)
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    memory.check_memory(Run(Path(path), CONFIG), VOCAB_SIZE, plan(), {**OPTIONS, **options}, StopRequest(), said.append)
    return questions, said


def test_what_fits_is_reported(monkeypatch):
    questions, said = check(monkeypatch, lambda question: {"fits": True, "peak_mb": 1234})
    (question,) = questions
    assert question["shape"] == (400, 20, 20) and question["settings"] == OPTIONS
    assert question["available"] == 900
    assert "400 pairs of 20 and 20 tokens" in said[0] and "1,234 MB" in said[-1]


def test_the_fewest_slices_that_fit_are_found_and_told_with_a_smaller_batch(monkeypatch):
    tried = []

    def fits(question):
        tried.append(question["settings"]["accumulate"])
        return {"fits": tried[-1] >= 5, "error": "out of memory"}

    with pytest.raises(UserError, match="not fit into memory .out of memory.; it does with --accumulate=6,") as told:
        check(monkeypatch, fits)
    assert "--batch_tokens=1333" in str(told.value) and tried[:2] == [1, 1] and len(tried) < 7
    with pytest.raises(UserError, match="--accumulate=16.* or with --batch_tokens=4000"):
        check(monkeypatch, lambda question: with_slices(question, 12), accumulate=8)


def with_slices(question, too_few, remat_fits=False):
    """Return that a trial fits with more micro-batches than `too_few`, or with `remat` if `remat_fits`."""
    settings = question["settings"]
    if settings["accumulate"] > too_few or (settings["remat"] and remat_fits):
        return {"fits": True, "peak_mb": 1}
    return {"fits": False, "error": "out of memory"}


def test_layers_computed_twice_are_tried_and_told_too(monkeypatch):
    with pytest.raises(UserError, match="it does with --remat or --accumulate=4, for the same updates, or with --b"):
        check(monkeypatch, lambda question: with_slices(question, 3, remat_fits=True))
    with pytest.raises(UserError, match="it does with --remat, for the same updates$"):
        check(monkeypatch, lambda question: with_slices(question, 1000, remat_fits=True))
    asked = []

    def fits(question):
        asked.append(question["settings"])
        return with_slices(question, 3)

    with pytest.raises(UserError, match="it does with --accumulate=4, for"):
        check(monkeypatch, fits, remat=True)
    assert len(asked) == len({settings["accumulate"] for settings in asked})  # each value once

    def both(question):
        settings = question["settings"]
        return with_slices(question, 63 if settings["remat"] else 1000)

    with pytest.raises(UserError, match="it does with --remat and --accumulate=64, for the same updates$"):
        check(monkeypatch, both)

    def not_this_model(question):
        return (
            {"fits": True, "error": "UserError: remat: …"}
            if question["settings"]["remat"]
            else with_slices(question, 3)
        )

    with pytest.raises(UserError, match="it does with --accumulate=4, for"):
        check(monkeypatch, not_this_model)


def test_a_model_that_is_itself_too_large_is_told(monkeypatch):
    with pytest.raises(UserError, match="the model itself is too large"):
        check(monkeypatch, lambda question: {"fits": False, "error": "out of memory"})


def test_only_what_may_not_fit_is_tried_unasked():
    run = Run(None, CONFIG)
    assert not memory.may_not_fit(run, VOCAB_SIZE, plan(), accumulate=1, remat=False)
    large = Run(None, {**CONFIG, "hparams": {**CONFIG["hparams"], "d_ff": 20_000, "num_layers": 10}})
    assert memory.may_not_fit(large, VOCAB_SIZE, plan(), accumulate=1, remat=False)


def test_a_run_that_has_begun_is_not_told_to_change_its_batches(monkeypatch, tmp_path):
    (tmp_path / "checkpoints" / "step-000000003").mkdir(parents=True)
    with pytest.raises(UserError, match="--accumulate=2, for the same updates$"):
        check(monkeypatch, lambda question: with_slices(question, 1), tmp_path)


def test_the_memory_of_a_container_is_what_its_files_say_without_what_is_only_remembered(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("4000\n")
    (tmp_path / "memory.stat").write_text("anon 10\ninactive_file 3000\n")
    monkeypatch.setattr(memory, "CONTROL_GROUPS", [(tmp_path, *memory.CONTROL_GROUPS[0][1:])])
    assert memory.available_bytes() == 4000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_bytes() > 10**6


def test_a_trial_that_fails_for_another_reason_is_no_reason_not_to_train(monkeypatch):
    _, said = check(monkeypatch, lambda question: {"fits": True, "error": "ImportError: no plug-in"})
    assert "could not be tried (ImportError: no plug-in)" in said[-1]


def test_out_of_memory_is_told_whatever_became_of_it_on_the_way():
    assert memory.ran_out(MemoryError())
    assert memory.ran_out(RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5 bytes"))
    with pytest.raises(SystemError) as caught:  # as compiled extensions raise it
        try:
            raise MemoryError
        except MemoryError as error:
            raise SystemError("returned a result with an exception set") from error
    assert memory.ran_out(caught.value)
    assert not memory.ran_out(ImportError("no plug-in"))


def test_the_estimate_grows_with_all_that_takes_memory():
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
    # Weights, gradients and two slots. Only the logits of one chunk are in memory.
    more = memory.estimated_bytes(HPARAMS, 2 * VOCAB_SIZE, 400, 20, 20) - estimate
    assert 4 * 4 * VOCAB_SIZE * HPARAMS.d_model < more < 4 * 8000 * VOCAB_SIZE
