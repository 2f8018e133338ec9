"""Less memory for more time: what lies inside a layer is computed a second time, in the backward pass."""

import keras

from keras_transformer.layers.dropout import Dropout


def rematerialized(layer):
    """Returns a function like a layer that keeps only its inputs for the backward pass.

    Its dropout masks are those that the layer itself would draw, and the same both times: their seeds are drawn once,
    outside.

    Args:
        layer: A layer of arrays by position, and of what has no gradient by keyword.
    """
    drops = [part for part in layer._flatten_layers() if isinstance(part, Dropout)]
    generators = [part.seed_generator for part in drops if part.seed_generator]

    def call(*arrays, **constants):
        seeds = [generator.next() for generator in generators]

        def computed(*arrays):
            for generator, seed in zip(generators, seeds):
                generator.drawn = seed
            try:
                return layer(*arrays, **constants)
            finally:
                for generator in generators:
                    generator.drawn = None

        return keras.remat(computed)(*arrays)

    return call
