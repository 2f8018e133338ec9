"""Batches and rates as every engine but ours is given them; needs NumPy alone."""

import numpy as np

NAMES = ("source", "inputs", "labels")


def write_batches(path, batches):
    """Write (source, decoder's input, labels), each int32 `[rows, length]`, of every batch into one .npz."""
    np.savez(path, **{f"{name}_{i}": array for i, batch in enumerate(batches) for name, array in zip(NAMES, batch)})


def read_batches(path):
    """Return the list of (source, decoder's input, labels) of a file."""
    with np.load(path) as file:
        return [tuple(file[f"{name}_{i}"] for name in NAMES) for i in range(len(file.files) // len(NAMES))]


def learning_rate(hparams, step):
    """Return equation 3 of the paper for an update counted from 1."""
    warm = hparams["warmup_steps"]
    return hparams["learning_rate_scale"] * hparams["d_model"] ** -0.5 * min(step**-0.5, step * warm**-1.5)


def sinusoids(length, d_model):
    """Return §3.5's positions, float32 `[length, d_model]`: sine and cosine of one frequency side by side."""
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, d_model).astype("float32")
