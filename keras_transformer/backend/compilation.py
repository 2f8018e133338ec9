"""Compilation of functions that use a model."""

import functools

import keras

COMPILES_EACH_SHAPE = keras.backend.backend() != "tensorflow"
"""Whether each new input shape requires a compilation. If so, callers should use few shapes."""


def compiled(function, *models, jit_compile=False):
    """Return a compiled version of `function`. TensorFlow compiles once for all shapes, JAX and XLA once per shape.

    Args:
        function: Function that takes nested arrays as positional arguments, and hashable constants as keyword
            arguments. It may read the variables of the models, and each call uses their current values.
        *models: The models, each a `keras.Model`.
        jit_compile: Whether TensorFlow uses XLA. JAX always does.
    """
    if keras.backend.backend() == "jax":
        return _compiled_by_jax(function, models)
    return _compiled_by_tensorflow(function, jit_compile)


def _compiled_by_tensorflow(function, jit_compile):
    import tensorflow as tf

    graphs = {}

    def shape(array):
        return tuple(array.shape) if jit_compile else (None,) * len(array.shape)

    def call(*arrays, **constants):
        # Create a `tf.function` for each signature, because TensorFlow warns if one `tf.function` has many signatures.
        # A signature depends on which optional arrays are present and, with XLA, also on the shapes.
        key = (tuple(map(shape, keras.tree.flatten(arrays))), *sorted(constants.items()))
        if key not in graphs:
            constant = functools.partial(function, **constants)
            signature = keras.tree.map_structure(lambda array: tf.TensorSpec(shape(array), array.dtype), arrays)
            # No AutoGraph: it would take most of the tracing time, and no Python control flow depends on a tensor.
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
    """Round up to one of 1, 2, 3, 4, 6, 8, 12, 16, 24, …, which gives few shapes with little padding."""
    power = 1 << (number - 1).bit_length()
    return power * 3 // 4 if number <= power * 3 // 4 else power
