"""Callbacks that count updates on the host, without reading anything from the device."""

import keras


class StepCallbacks(keras.callbacks.CallbackList):
    """Callback list that discards the metrics of each update, so that Keras does not read them from the device."""

    def on_train_batch_begin(self, batch, logs=None):
        for callback in self.callbacks:
            callback.on_train_batch_begin(batch)

    def on_train_batch_end(self, batch, logs=None):
        for callback in self.callbacks:
            callback.on_train_batch_end(batch)


class StepCallback(keras.callbacks.Callback):
    """Base class for callbacks. It calls `on_step(step)` after each update and `on_end(step)` at the end of training.

    Args:
        start: Number of updates before this call to `fit`.
    """

    def __init__(self, start):
        super().__init__()
        self.step = start

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        self.on_step(self.step)

    def on_train_end(self, logs=None):
        self.on_end(self.step)

    def on_step(self, step):
        """Handle the end of an update. `step` counts from 1."""

    def on_end(self, step):
        """Handle the end of training, after update `step`."""
