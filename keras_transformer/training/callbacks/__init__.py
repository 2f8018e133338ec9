"""Training callbacks. All of them count updates, not epochs."""

from keras_transformer.training.callbacks.base import StepCallback, StepCallbacks
from keras_transformer.training.callbacks.checkpoint import CheckpointCallback
from keras_transformer.training.callbacks.early_stopping import EarlyStopping, ended_early
from keras_transformer.training.callbacks.progress import ProgressLogger
from keras_transformer.training.callbacks.validation import ValidationCallback

__all__ = [
    "CheckpointCallback",
    "EarlyStopping",
    "ProgressLogger",
    "StepCallback",
    "StepCallbacks",
    "ValidationCallback",
    "ended_early",
]
