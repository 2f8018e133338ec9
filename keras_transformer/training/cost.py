"""What a training will cost, before it is begun (Table 2)."""

import dataclasses

from keras_transformer.config import registry

GPU_TFLOPS = {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}
"""Sustained single-precision TFLOP/s, as the paper assumes them (footnote 5)."""
PAPER_HOURS = {"base": 12.0, "big": 84.0, "big_enfr": 84.0}
"""Hours on 8 P100 (§5.2): 100,000 updates of base, 300,000 of big."""
PAPER_GPUS = 8


@dataclasses.dataclass(frozen=True)
class TrainingCost:
    """Floating point operations of a training.

    Attributes:
        parameters: Weights of the model.
        updates: Number of updates.
        counted: Operations of all matrix products, a backward pass as two forward passes; a multiply-add is two.
    """

    parameters: int
    updates: int
    counted: float

    def hours(self, gpus, tflops):
        """Returns the hours on `gpus` devices that did nothing but these operations at `tflops` TFLOP/s each."""
        return self.counted / (gpus * tflops * 1e12) / 3600


def training_cost(hparams, vocab_size, length=30):
    """Returns the `TrainingCost` of the hparams' model.

    Args:
        hparams: `HParams`.
        vocab_size: Tokens in the vocabulary.
        length: Tokens of every sentence, on either side: attention costs more in long ones.
    """
    import keras
    from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute

    waiting = list(get_global_attribute("uninitialized_variables", []))
    with keras.StatelessScope(initialize_variables=False):  # shapes are all that is asked for
        model = registry.models.get(hparams.model)(vocab_size, hparams)
    set_global_attribute("uninitialized_variables", waiting)  # or the next such scope would draw all weights
    rows = max(hparams.batch_tokens // length, 1)
    update = hparams.passes * model.update_flops(rows, length, length)  # not compiled, it knows of one pass
    return TrainingCost(model.count_params(), hparams.train_steps, float(update) * hparams.train_steps)


def paper_flops(hours, gpus, tflops):
    """Returns the floating point operations by the paper's method: time × devices × sustained rate of one."""
    return hours * 3600 * gpus * tflops * 1e12
