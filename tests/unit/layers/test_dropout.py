"""Tests of dropout (§5.4): rate, scale of the kept values, and mask of the gradient."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.dropout import Dropout

TENSORFLOW = keras.backend.backend() == "tensorflow"


def dropped(layer, x, dtype="float32"):
    return ops.convert_to_numpy(ops.cast(layer(ops.cast(x, dtype), training=True), "float32"))


@pytest.mark.backend
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_dropout_drops_its_rate_and_rescales(rate, dtype, fresh_seed):
    layer, x = (
        Dropout(rate, seed=fresh_seed, dtype=f"mixed_{dtype}" if dtype != "float32" else dtype),
        np.ones((99, 1001)),
    )
    y = dropped(layer, x, dtype)
    assert np.isclose(y[y != 0], 1 / (1 - rate), rtol={"float32": 1e-4, "bfloat16": 4e-3, "float16": 1e-3}[dtype]).all()
    # Check the share of zeros overall and per row, and the share of adjacent pairs of zeros. Each must be within five
    # standard deviations of the expected share.
    for share, expected, count in (
        ((y == 0).mean(), rate, y.size),
        *(((row == 0).mean(), rate, row.size) for row in y),
        (((y[:, 1:] == 0) & (y[:, :-1] == 0)).mean(), rate**2, y.size / 2),
    ):
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / count)
    assert not np.array_equal(dropped(layer, x, dtype), y)


@pytest.mark.backend
def test_dropout_is_identity_at_inference_or_rate_0():
    x = np.ones((10, 100), "float32")
    np.testing.assert_array_equal(Dropout(0.5, seed=1)(x), x)
    np.testing.assert_array_equal(Dropout(0.0, seed=1)(x, training=True), x)


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 4, 5)])
def test_dropout_handles_any_shape(shape, fresh_seed):
    x = np.random.default_rng(fresh_seed).normal(size=shape).astype("float32")
    layer = Dropout(0.5, seed=fresh_seed)
    results = [dropped(layer, x) for _ in range(20)]
    for y in results:
        assert y.shape == shape and np.isclose(y, np.where(y == 0, 0, 2 * x)).all()
    assert any((y == 0).any() for y in results) and any((y != 0).any() for y in results)


@pytest.mark.skipif(not TENSORFLOW, reason="only TensorFlow has an explicit gradient")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_dropout_gradient_uses_the_output_mask(jit_compile, fresh_seed):
    import tensorflow as tf

    random = np.random.default_rng(fresh_seed)
    x, grad_out = (tf.constant(random.uniform(1, 2, (5, 9, 11)), tf.float32) for _ in range(2))
    layer, eager = Dropout(0.3, seed=fresh_seed), Dropout(0.3, seed=fresh_seed)

    @tf.function(jit_compile=jit_compile)
    def output_and_gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        return y, tape.gradient(y, x, grad_out)

    layer.build()
    y, gradient = output_and_gradient(x)
    np.testing.assert_array_equal(y, eager(x, training=True))  # compiled and eager calls use the same mask
    np.testing.assert_allclose(gradient, np.where(y == 0, 0, grad_out / 0.7), rtol=1e-4)
