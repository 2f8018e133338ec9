"""Execution options of a training run: devices, precision, memory and compilation."""

import dataclasses
from typing import Literal

import keras

from keras_transformer.distributed.cluster import Coordinator
from keras_transformer.distributed.strategy import check_strategy
from keras_transformer.utils.errors import UserError, unknown

PRECISIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
"""Keras dtype policy for each precision."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Execution options of `train_model`. All of them may change when the run resumes.

    Attributes:
        strategy: "one" for one device; "mirrored" on TensorFlow or "jax" on JAX for all devices of this process;
            "multiworker" for the devices of several processes; "auto" for all accelerators, or one CPU device without
            accelerators.
        devices: Number of devices of this process; None for the default of the strategy.
        coordinator: `Coordinator` of several JAX processes, for the strategy "multiworker".
        worker_patience: Maximum time in seconds to wait for the other processes at the start.
        precision: Type of matrix products: "float32", "bfloat16" or "float16". Weights, norms, softmax and loss are
            always float32.
        accumulate: Number of micro-batches per update. The update uses the sum of their gradients.
        remat: Whether the backward pass recomputes layers to save memory.
        jit_compile: Whether XLA compiles the update: True, False or "auto".

    Raises:
        UserError: An option is invalid, or the backend does not support it.
    """

    strategy: str = "auto"
    devices: int | None = None
    coordinator: Coordinator | None = None
    worker_patience: float = 300
    precision: str = "float32"
    accumulate: int = 1
    remat: bool = False
    jit_compile: bool | Literal["auto"] = "auto"

    def __post_init__(self):
        if self.coordinator and keras.backend.backend() != "jax":
            raise UserError("--coordinator needs KERAS_BACKEND=jax; with TensorFlow, workers read TF_CONFIG")
        if self.coordinator and self.strategy != "multiworker":
            raise UserError(f"--coordinator needs --strategy=multiworker, got --strategy={self.strategy}")
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        for name in ("accumulate", "devices"):
            value = getattr(self, name)
            if not (name == "devices" and value is None) and (type(value) is not int or value < 1):
                raise UserError(f"{name} must be an integer of at least 1, got {value!r}")
        if self.jit_compile not in (True, False, "auto"):
            raise UserError(f'jit_compile must be True, False or "auto", got {self.jit_compile!r}')
        check_strategy(self.strategy, self.devices, self.jit_compile)

    @property
    def dtype_policy(self):
        """The name of the Keras dtype policy."""
        return PRECISIONS[self.precision]

    def update_settings(self):
        """Return the options that must be equal on all workers of a run, as a dict for JSON."""
        names = ("strategy", "devices", "precision", "accumulate", "remat", "jit_compile")
        return {name: getattr(self, name) for name in names}
