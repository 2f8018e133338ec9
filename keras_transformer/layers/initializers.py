"""How weights begin: drawn with NumPy from (seed, name), so that every backend begins with the same.

The paper does not say how; `docs/design_notes.md` says why these were chosen.
"""

import math
import zlib

import numpy as np
from keras import ops


def projection(seed, name):
    """Glorot uniform `[rows, columns]`, for output projections and feed-forward kernels."""
    return _uniform(seed, name, gain=1.0)


def query_key_value(seed, name):
    """Glorot uniform with half its variance, as if query, key and value kernels were one matrix.

    With plain Glorot a small post-norm encoder collapses: its outputs hardly differ between positions.
    """
    return _uniform(seed, name, gain=math.sqrt(0.5))


def embedding(seed, name):
    """N(0, 1/d_model) `[rows, d_model]`: times √d_model (§3.4) an embedding has unit variance."""

    return _Drawn(lambda shape: _generator(seed, name).standard_normal(shape, dtype="float32") * shape[1] ** -0.5)


class _Drawn:
    """An initializer of a function from a shape to an array.

    An object: where a large variable is for several devices Keras has JAX compile its initializer's `__call__`, and JAX
    fails on that of a function, to which there is no weak reference.
    """

    def __init__(self, draw):
        self.draw = draw

    def __call__(self, shape, dtype=None):
        return ops.convert_to_tensor(self.draw(shape), dtype=dtype)


def _uniform(seed, name, gain):
    def draw(shape):
        limit = np.float32(gain * math.sqrt(6.0 / (shape[0] + shape[1])))
        return (_generator(seed, name).random(shape, dtype="float32") * 2 - 1) * limit

    return _Drawn(draw)


def _generator(seed, name):
    return np.random.default_rng(None if seed is None else [seed, zlib.crc32(name.encode())])
