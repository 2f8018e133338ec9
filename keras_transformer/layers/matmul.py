"""Matrix product with a faster gradient on CPUs."""

import keras
from keras import ops

from keras_transformer.backend.devices import on_cpu


def matmul(x, kernel, training=False):
    """Return x · kernel in the dtype of x.

    The gradient with respect to x is a product with the transposed kernel. On a CPU in float32, TensorFlow computes
    this product faster if a kernel with long rows is first transposed in memory, as in this function.

    Args:
        x: `[..., rows]`.
        kernel: `[rows, columns]`.
        training: Whether the caller computes gradients.

    Returns:
        `[..., columns]`.
    """
    kernel = ops.cast(kernel, x.dtype)  # decoding runs outside of Keras' autocast
    rows, columns = kernel.shape
    transpose_first = columns >= rows and keras.backend.standardize_dtype(x.dtype) == "float32"
    if training and transpose_first and keras.backend.backend() == "tensorflow" and on_cpu():
        output = _on_tensorflow(ops.reshape(x, (-1, rows)), kernel)
        return ops.reshape(output, (*ops.shape(x)[:-1], columns))
    return ops.matmul(x, kernel)


def _on_tensorflow(x, kernel):
    import tensorflow as tf

    scope = tf.get_current_name_scope() or "matmul"

    @tf.custom_gradient
    def multiplied(x, kernel):
        def backward(grad_out):
            with tf.name_scope(f"{scope}/"):
                # The batch axis keeps TensorFlow from fusing the transposition into matmul, which would be slower.
                transposed = tf.reshape(tf.transpose(kernel[None], (0, 2, 1)), kernel.shape[::-1])
                return tf.matmul(grad_out, transposed), tf.matmul(x, grad_out, transpose_a=True)

        return tf.matmul(x, kernel), backward

    return multiplied(x, kernel)
