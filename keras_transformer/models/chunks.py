"""Division of arrays into chunks, and a loop that processes the chunks one after the other to save memory."""

import keras
from keras import ops


def split_halves(array):
    """Reshape `[2 · rows, …]` to `[2, rows, …]`."""
    return ops.reshape(array, (2, -1, *array.shape[1:]))


def merge_axes(array):
    """Reshape `[rows, columns, …]` to `[rows · columns, …]`."""
    return ops.reshape(array, (-1, *array.shape[2:]))


def split_rows(array, parts):
    """Reshape `[rows, …]` to `[⌈rows / parts⌉, parts, …]`, padded with zeros."""
    rows, *lengths = ops.shape(array)
    array = ops.pad(array, [(0, -rows % parts), *((0, 0) for _ in lengths)])
    return ops.reshape(array, (-1, parts, *lengths))


def scan(function, carry, arrays, num_outputs):
    """Scan a function over the first axis of arrays, one step after the other, like `jax.lax.scan`.

    Args:
        function: Function that takes the carry and one element of each array. It returns the next carry and a list of
            `num_outputs` float32 arrays.
        carry: Initial carry, nested arrays.
        arrays: List of arrays `[steps, …]`.
        num_outputs: Number of outputs of the function.

    Returns:
        The last carry, and the outputs, each stacked to `[steps, …]`.
    """
    if keras.backend.backend() == "jax":
        import jax

        return jax.lax.scan(lambda carry, elements: function(carry, *elements), carry, arrays)
    import tensorflow as tf

    steps = ops.shape(arrays[0])[0]
    outputs = [tf.TensorArray("float32", steps) for _ in range(num_outputs)]

    def step(index, carry, outputs):
        carry, values = function(carry, *[array[index] for array in arrays])
        return index + 1, carry, [output.write(index, value) for output, value in zip(outputs, values)]

    _, carry, outputs = tf.while_loop(lambda index, *_: index < steps, step, (0, carry, outputs), parallel_iterations=1)
    return carry, [output.stack() for output in outputs]
