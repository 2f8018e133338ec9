"""Tests of the matrix product and its gradients."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.backend.devices import on_cpu
from keras_transformer.layers.matmul import matmul

pytestmark = pytest.mark.backend

tensorflow_on_cpu = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow" or not on_cpu(), reason="only TensorFlow on CPU has an explicit gradient"
)


def matmul_and_gradients(x, kernel, grad_out):
    """Return x · kernel and the gradients of Σ x · kernel · grad_out with respect to `x` and `kernel`."""
    if keras.backend.backend() == "jax":
        import jax

        found, pulled = jax.vjp(lambda x, kernel: matmul(x, kernel, training=True), x, kernel)
        return [np.asarray(array) for array in (found, *pulled(ops.convert_to_tensor(grad_out)))]
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None] * (x.ndim - 1) + [len(kernel)]), tf.TensorSpec(kernel.shape)])
    def computed(x, kernel):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            found = matmul(x, kernel, training=True)
            total = tf.reduce_sum(found * grad_out)
        assert found.shape[-1] == kernel.shape[1]
        return [found, *tape.gradient(total, [x, kernel])]

    return [array.numpy() for array in computed(x, kernel)]


@pytest.mark.parametrize("lengths", [(), (7,), (3, 5)])
@pytest.mark.parametrize(("rows", "columns"), [(4, 16), (8, 8), (16, 4)])
def test_matmul_value_and_gradients_match_numpy(lengths, rows, columns, fresh_seed):
    random = np.random.default_rng(fresh_seed)
    x, kernel, grad_out = (
        random.normal(size=shape).astype("float32")
        for shape in ((2, *lengths, rows), (rows, columns), (2, *lengths, columns))
    )
    found, grad_x, grad_kernel = matmul_and_gradients(x, kernel, grad_out)
    np.testing.assert_allclose(found, x @ kernel, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(grad_x, grad_out @ kernel.T, rtol=1e-5, atol=1e-5)
    flat = x.reshape(-1, rows).T @ grad_out.reshape(-1, columns)
    np.testing.assert_allclose(grad_kernel, flat, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ops.convert_to_numpy(matmul(x, kernel)), found, rtol=1e-6, atol=1e-6)


def test_matmul_returns_input_dtype():
    for training in (False, True):
        found = matmul(ops.ones((2, 3, 4), "bfloat16"), ops.ones((4, 8), "float32"), training)
        assert keras.backend.standardize_dtype(found.dtype) == "bfloat16" and found.shape == (2, 3, 8)


@tensorflow_on_cpu
@pytest.mark.parametrize(("rows", "columns", "across"), [(4, 16, 0), (16, 4, 1)])
def test_matmul_never_reads_long_rows_of_second_factor(rows, columns, across):
    import tensorflow as tf

    @tf.function
    def gradient(x, kernel):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            total = tf.reduce_sum(matmul(x, kernel, training=True) ** 2)
        return tape.gradient(total, [x, kernel])

    graph = gradient.get_concrete_function(tf.ones((3, rows)), tf.ones((rows, columns))).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    products = [node for node in nodes if node.op in ("MatMul", "BatchMatMulV2")]
    assert len(products) == 3
    assert sum(node.attr["transpose_b"].b or node.attr["adj_y"].b for node in products) == across
