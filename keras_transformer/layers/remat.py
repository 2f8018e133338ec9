"""Less memory for more time: what lies inside a layer is computed a second time, in the backward pass."""

import keras

from keras_transformer.layers.dropout import ReplicaSeedGenerator
from keras_transformer.utils.errors import UserError


def seed_generators(layer):
    """Return the seed generators of a layer and of those within.

    Raises:
        UserError: A seed of one cannot be drawn ahead: it is not this package's `Dropout`'s.
    """
    found = [generator for part in layer._flatten_layers() for generator in part._seed_generators]
    for generator in found:
        if not isinstance(generator, ReplicaSeedGenerator):
            raise UserError(
                f"remat: layer {layer.name} draws random numbers by {type(generator).__name__}, and could not draw the "
                "same ones again; let it use keras_transformer.layers.dropout.Dropout"
            )
    return found


def rematerialized(layer):
    """Return a function like a layer that keeps only its inputs for the backward pass.

    Its dropout masks are those that the layer itself would draw, and the same both times: their seeds are drawn once,
    outside. Each dropout within is called once.

    Args:
        layer: A layer of arrays by position, and of what has no gradient by keyword.
    """
    generators = seed_generators(layer)

    def call(*arrays, **constants):
        seeds = [generator.next() for generator in generators]

        def computed(*arrays):
            for generator, seed in zip(generators, seeds):  # replicas take turns: no reduction lies within
                generator.drawn = seed
            try:
                return layer(*arrays, **constants)
            finally:
                for generator in generators:
                    generator.drawn = None

        return keras.remat(computed)(*arrays)

    return call
