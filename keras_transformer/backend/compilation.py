"""Functions of a model, compiled as the backend likes it."""

import functools

import keras

COMPILES_EACH_SHAPE = keras.backend.backend() != "tensorflow"
"""Whether every new shape of an input costs a compilation, so that shapes should be few."""


def compiled(function, *models, jit_compile=False):
    """Returns the function compiled: once for all shapes on TensorFlow, once for each on JAX and by XLA.

    Args:
        function: Of nested arrays, by position, and of what can be hashed, by keyword, which is constant to it. It may
            read the variables of the models: at each call they are what they are then.
        *models: Each a `keras.Model`.
        jit_compile: Whether TensorFlow uses XLA. JAX always does.
    """
    if keras.backend.backend() == "jax":
        return _compiled_by_jax(function, models)
    return _compiled_by_tensorflow(function, jit_compile)


def _compiled_by_tensorflow(function, jit_compile):
    import tensorflow as tf

    graphs = {}

    def specification(array):
        return tf.TensorSpec([None] * len(array.shape), array.dtype)

    def call(*arrays, **constants):
        key = tuple(sorted(constants.items()))
        if key not in graphs:
            constant = functools.partial(function, **constants)
            signature = None if jit_compile else keras.tree.map_structure(specification, arrays)
            # No Python statement depends on a tensor, and looking for them takes most of the time of tracing.
            graphs[key] = tf.function(constant, input_signature=signature, jit_compile=jit_compile, autograph=False)
        return graphs[key](*arrays)

    return call


def _compiled_by_jax(function, models):
    import jax

    @functools.partial(jax.jit, static_argnames="constants")
    def pure(values, arrays, constants):
        with keras.StatelessScope(zip(variables(), values)):
            return function(*arrays, **dict(constants))

    def variables():
        return [variable for model in models for variable in model.variables]

    def call(*arrays, **constants):
        values = [variable.value for variable in variables()]
        return pure(values, arrays, constants=tuple(sorted(constants.items())))

    return call


def rounded_up(number):
    """Returns the number, or the next greater one, of 1, 2, 3, 4, 6, 8, 12, 16, 24, …: few shapes, little padding."""
    power = 1 << (number - 1).bit_length()
    return power * 3 // 4 if number <= power * 3 // 4 else power
