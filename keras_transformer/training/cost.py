"""Cost estimate for a training run before it starts (Table 2)."""

import dataclasses

from keras_transformer.config import registry

GPU_TFLOPS = {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}
"""Sustained single-precision TFLOP/s of GPUs, as assumed in the paper (footnote 5)."""
PAPER_HOURS = {"base": 12.0, "big": 84.0, "big_enfr": 84.0}
"""Training hours on 8 P100 GPUs (§5.2), for 100,000 updates of base and 300,000 of big."""
PAPER_GPUS = 8


@dataclasses.dataclass(frozen=True)
class TrainingCost:
    """Estimated cost of a training run.

    Attributes:
        parameters: Number of weights of the model.
        updates: Number of updates.
        counted: Floating-point operations of all matrix products in the run. A multiply-add counts as two operations. A
            backward pass has twice as many operations as a forward pass.
    """

    parameters: int
    updates: int
    counted: float

    def hours(self, gpus, tflops):
        """Return the hours that the run takes on `gpus` devices that sustain `tflops` TFLOP/s each."""
        return self.counted / (gpus * tflops * 1e12) / 3600


def training_cost(hparams, vocab_size, length=30):
    """Estimate the `TrainingCost` from hyperparameters.

    Args:
        hparams: `HParams`.
        vocab_size: Number of tokens in the vocabulary.
        length: Tokens per sentence on each side. Attention costs more per token in longer sentences.
    """
    import keras
    from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute

    waiting = list(get_global_attribute("uninitialized_variables", []))
    with keras.StatelessScope(initialize_variables=False):  # the count needs only shapes
        model = registry.models.get(hparams.model)(vocab_size, hparams)
    set_global_attribute("uninitialized_variables", waiting)  # otherwise the next scope would initialize the model
    rows = max(hparams.batch_tokens // length, 1)
    # `update_flops` includes the second pass of R-Drop only for a compiled model, so multiply by `passes` here.
    update = hparams.passes * model.update_flops(rows, length, length)
    return TrainingCost(model.count_params(), hparams.train_steps, float(update) * hparams.train_steps)


def paper_flops(hours, gpus, tflops):
    """Estimate floating-point operations by the paper's method: time × number of devices × sustained TFLOP/s."""
    return hours * 3600 * gpus * tflops * 1e12
