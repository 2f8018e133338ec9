"""Weight initializers that use NumPy, seeded with (seed, name), so that all backends start from the same weights.

If the seed is None, each array has its own seed from Python's `random`, which `keras.utils.set_random_seed` seeds.

The paper does not specify initializers. `docs/design_notes.md` explains the choice.
"""

import math
import random
import zlib

import numpy as np
from keras import ops


def projection(seed, name):
    """Return a Glorot uniform initializer `[rows, columns]`, for output projections and feed-forward kernels."""
    return _uniform(seed, name, gain=1.0)


def query_key_value(seed, name):
    """Return a Glorot uniform initializer with half the variance, as if query, key and value kernels were one matrix.

    With the full variance, a small post-norm encoder collapses: its outputs hardly differ between positions.
    """
    return _uniform(seed, name, gain=math.sqrt(0.5))


def embedding(seed, name):
    """Return an initializer for a matrix `[rows, d_model]` with entries from N(0, 1/d_model).

    Embeddings that are scaled by √d_model then have variance 1 (§3.4).
    """
    return _Initializer(lambda shape: _generator(seed, name).standard_normal(shape, dtype="float32") * shape[1] ** -0.5)


class _Initializer:
    """Initializer that calls a function to draw an array of a given shape.

    A plain function as initializer would fail for large variables on several devices: Keras compiles the initializer's
    `__call__` with JAX, and the `__call__` of a function does not support weak references.
    """

    def __init__(self, draw):
        self.draw = draw

    def __call__(self, shape, dtype=None):
        return ops.convert_to_tensor(self.draw(shape), dtype=dtype)


def _uniform(seed, name, gain):
    def draw(shape):
        limit = np.float32(gain * math.sqrt(6.0 / (shape[0] + shape[1])))
        return (_generator(seed, name).random(shape, dtype="float32") * 2 - 1) * limit

    return _Initializer(draw)


def _generator(seed, name):
    return np.random.default_rng(random.getrandbits(128) if seed is None else [seed, zlib.crc32(name.encode())])
