"""Functions of a model, compiled as the backend likes it."""

import functools

import keras
import numpy as np

COMPILES_EACH_SHAPE = keras.backend.backend() != "tensorflow"
"""Whether every new shape of an input costs a compilation, so that shapes should be few."""


def compiled(function, model):
    """Returns the function compiled: once for all shapes on TensorFlow, once for each on JAX.

    Args:
        function: Of arrays, by position, and of numbers, by keyword, which are constants to it. It may read the
            variables of `model`: at each call they are what they are then.
        model: `keras.Model`.
    """
    return (_compiled_by_jax if COMPILES_EACH_SHAPE else _compiled_by_tensorflow)(function, model)


def _compiled_by_tensorflow(function, model):
    import tensorflow as tf

    graphs = {}

    def call(*arrays, **numbers):
        key = tuple(sorted(numbers.items()))
        if key not in graphs:
            signature = [tf.TensorSpec([None] * np.ndim(a), np.asarray(a).dtype) for a in arrays]
            graphs[key] = tf.function(lambda *tensors: function(*tensors, **numbers), input_signature=signature)
        return graphs[key](*arrays)

    return call


def _compiled_by_jax(function, model):
    import jax

    @functools.partial(jax.jit, static_argnames="numbers")
    def pure(values, arrays, numbers):
        with keras.StatelessScope(zip(model.variables, values)):
            return function(*arrays, **dict(numbers))

    def call(*arrays, **numbers):
        values = [variable.value for variable in model.variables]
        return pure(values, arrays, numbers=tuple(sorted(numbers.items())))

    return call


def rounded_up(number):
    """Returns the number, or the next greater one, of 1, 2, 3, 4, 6, 8, 12, 16, 24, …: few shapes, little padding."""
    power = 1 << (number - 1).bit_length()
    return power * 3 // 4 if number <= power * 3 // 4 else power
