"""OpenNMT-tf's process: its model, loss and gradients in one function, and the Adam that it makes.

Smoothing differs from the paper's reading here: ε is shared by the other symbols, not by all.
"""

import itertools

import arrays
import layout
import numpy as np
import opennmt
import protocol
import tensorflow as tf
from opennmt_tf_model import ROWS, assign, build


class Schedule(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Equation 3; OpenNMT-tf's own has no factor but the same."""

    def __init__(self, hparams):
        self.hparams = hparams

    def __call__(self, step):
        h, step = self.hparams, tf.cast(step, tf.float32) + 1.0
        warm = step * h["warmup_steps"] ** -1.5
        return h["learning_rate_scale"] * h["d_model"] ** -0.5 * tf.minimum(tf.math.rsqrt(step), warm)


def make(job):
    protocol.bound_threads(job["threads"])
    config, weights = layout.read_model(job["model"])
    h = config["hparams"]
    model = build(config, {"label_smoothing": h["label_smoothing"], "average_loss_in_time": True})
    assign(model, weights)
    model.set_jit_compile(job["mode"] == "xla")
    optimizer = opennmt.optimizers.make_optimizer(
        "Adam", Schedule(h), beta_1=h["adam_beta_1"], beta_2=h["adam_beta_2"], epsilon=h["adam_epsilon"]
    )
    batches = itertools.cycle([example(*batch) for batch in arrays.read_batches(job["batches"])])
    ids, lengths = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)

    @tf.function(
        input_signature=None if job["mode"] == "xla" else [
            {"ids": ids, "length": lengths}, {"ids": ids, "ids_out": ids, "length": lengths}
        ]
    )  # fmt: skip
    def update(features, labels):
        loss, gradients = model.compute_gradients(features, labels, optimizer)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights))
        return loss

    def train(updates):
        for batch in itertools.islice(batches, updates):
            loss = update(*batch)
        return float(loss)

    return protocol.trained(job, train)


def example(source, inputs, labels):
    """Return the features and labels of a batch of our ids."""

    def length(array):
        return tf.constant((array != 0).sum(axis=1).astype("int32"))

    def theirs(array):
        return tf.constant(np.where(array < len(ROWS), np.take(ROWS, array, mode="clip"), array).astype("int32"))

    return {"ids": theirs(source), "length": length(source)}, {
        "ids": theirs(inputs), "ids_out": theirs(labels), "length": length(labels)
    }  # fmt: skip


if __name__ == "__main__":
    protocol.serve(make)
