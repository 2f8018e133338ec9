"""Learning-rate schedule, optimizer, and the arguments of `compile` (§5.3)."""

from typing import Any

import keras
from keras import ops

from keras_transformer.config.hparams import HParams
from keras_transformer.models.loss import SmoothedCrossEntropy
from keras_transformer.training.optimizer import GuardedAdam


@keras.saving.register_keras_serializable("keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate of equation 3, scale · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5).

    Args:
        d_model: Width of the model.
        warmup_steps: Number of updates of linear warm-up.
        scale: Factor; 1 in the paper.

    Call arguments:
        step: Number of updates so far, which Keras counts from 0.

    Returns:
        The learning rate, scalar float32. The paper counts steps from 1, so the result is the paper's rate at step + 1.
    """

    def __init__(self, d_model: int, warmup_steps: int, scale: float = 1.0):
        super().__init__()
        self.d_model, self.warmup_steps, self.scale = d_model, warmup_steps, scale

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32") + 1.0
        return self.scale * self.d_model**-0.5 * ops.minimum(step**-0.5, step * self.warmup_steps**-1.5)

    def get_config(self) -> dict[str, Any]:
        return {"d_model": self.d_model, "warmup_steps": self.warmup_steps, "scale": self.scale}


def make_schedule(hparams: HParams) -> TransformerSchedule:
    """Return the `TransformerSchedule` for hyperparameters."""
    return TransformerSchedule(hparams.d_model, hparams.warmup_steps, hparams.learning_rate_scale)


def compile_arguments(
    hparams: HParams, accumulate: int = 1, jit_compile: bool | str = "auto", remat: bool = False
) -> dict[str, Any]:
    """Return the keyword arguments of `model.compile`: `model.compile(**compile_arguments(hparams))`.

    Args:
        hparams: `HParams`, which define the schedule, Adam, label smoothing (§5.3, §5.4) and R-Drop.
        accumulate: Number of micro-batches per update. The sum of their gradients is the gradient of the whole batch.
        jit_compile: Whether XLA compiles the step, once per shape. "auto" leaves the choice to Keras, which does not
            compile on the CPU with TensorFlow.
        remat: Whether the backward pass recomputes layers to save memory. Recomputing does not change the update.
    """
    optimizer = GuardedAdam(
        make_schedule(hparams), hparams.adam_beta_1, hparams.adam_beta_2, hparams.adam_epsilon,
        clip_norm=hparams.clip_norm, ema_decay=hparams.ema_decay,
    )  # fmt: skip
    loss = SmoothedCrossEntropy(hparams.label_smoothing, r_drop=hparams.r_drop)
    return {
        "optimizer": optimizer, "loss": loss, "jit_compile": jit_compile, "accumulate": accumulate, "remat": remat,
    }  # fmt: skip
