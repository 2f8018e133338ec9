"""Tests of layer normalization with an explicit gradient, compared with Keras."""

import keras
import numpy as np
import oracles
import pytest
from keras import ops

from keras_transformer.layers.normalization import LayerNormalization

pytestmark = pytest.mark.backend


@pytest.fixture
def inputs(fresh_seed):
    random = np.random.default_rng(fresh_seed)
    x, grad_out = random.normal(2.0, 3.0, (2, 3, 5, 8)).astype("float32")
    return x, grad_out, *random.normal(1.0, 0.5, (2, 8)).astype("float32")


def output_and_gradients(layer, x, grad_out, gamma, beta):
    """Return the output and the gradients of Σ output · grad_out with respect to input, γ and β."""
    layer.build(x.shape)
    layer.gamma.assign(gamma)
    layer.beta.assign(beta)
    options = {"training": True} if isinstance(layer, LayerNormalization) else {}
    if keras.backend.backend() == "jax":
        import jax

        def total(x, *weights):
            output, _ = layer.stateless_call(weights, [], x, **options)
            return ops.sum(ops.cast(output, "float32") * grad_out), output

        weights = [variable.value for variable in layer.trainable_variables]
        gradients, output = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(ops.convert_to_tensor(x), *weights)
    else:
        import tensorflow as tf

        x = tf.convert_to_tensor(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x, **options)
            total = tf.reduce_sum(tf.cast(output, tf.float32) * grad_out)
        gradients = tape.gradient(total, [x, *(variable.value for variable in layer.trainable_variables)])
    return [ops.convert_to_numpy(ops.cast(array, "float32")) for array in (output, *gradients)]


def test_normalization_matches_keras_and_oracle(inputs):
    found = output_and_gradients(LayerNormalization(epsilon=1e-6), *inputs)
    expected = output_and_gradients(keras.layers.LayerNormalization(epsilon=1e-6), *inputs)
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)
    x, _, gamma, beta = inputs
    np.testing.assert_allclose(found[0], oracles.layer_norm(x, {"gamma": gamma, "beta": beta}), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_normalization_computes_in_float32(inputs, dtype):
    x, grad_out, gamma, beta = inputs
    x = (4 * np.round(x) + 600).astype("float32")  # exact in bfloat16, unlike squared differences from the mean
    layer = LayerNormalization(epsilon=1e-6, dtype=f"mixed_{dtype}")
    found, gradient, *_ = output_and_gradients(layer, ops.cast(x, dtype), grad_out, gamma, beta)
    assert keras.backend.standardize_dtype(layer(ops.cast(x, dtype), training=True).dtype) == dtype
    np.testing.assert_allclose(found, oracles.layer_norm(x, {"gamma": gamma, "beta": beta}), rtol=0.02, atol=0.02)
    exact = LayerNormalization(epsilon=1e-6)
    grad_out = ops.convert_to_numpy(ops.cast(ops.cast(grad_out, dtype), "float32"))
    _, expected, *_ = output_and_gradients(exact, x, grad_out, gamma, beta)
    np.testing.assert_allclose(gradient, expected, rtol=0.02, atol=0.02 * np.abs(expected).max())


def test_normalization_same_in_training_and_inference(inputs):
    x, _, gamma, beta = inputs
    layer = LayerNormalization(epsilon=1e-6)
    layer.build(x.shape)
    layer.gamma.assign(gamma)
    layer.beta.assign(beta)
    trained, used = (ops.convert_to_numpy(layer(x, training=training)) for training in (True, False))
    np.testing.assert_allclose(trained, used, rtol=1e-5, atol=1e-5)
