"""Rematerialization: recompute a layer in the backward pass instead of keeping its activations."""

import keras

from keras_transformer.layers.dropout import ReplicaSeedGenerator
from keras_transformer.utils.errors import UserError


def seed_generators(layer):
    """Return the seed generators of a layer and of its sublayers.

    Raises:
        UserError: A seed generator is not a `ReplicaSeedGenerator`, so it cannot repeat its seeds.
    """
    generators = [generator for sublayer in layer._flatten_layers() for generator in sublayer._seed_generators]
    for generator in generators:
        if not isinstance(generator, ReplicaSeedGenerator):
            raise UserError(
                f"with remat, the random numbers of layer {layer.name} must come from "
                f"keras_transformer.layers.dropout.Dropout, got {type(generator).__name__}. Use this dropout layer."
            )
    return generators


def rematerialized(layer):
    """Return a function that computes a layer and keeps only its inputs for the backward pass.

    The function draws the seeds of all dropout masks once, so that the forward pass and the recomputation use the same
    masks. These are the masks that the layer would use without rematerialization. The layer must call each of its
    dropout layers exactly once.

    Args:
        layer: Layer that takes differentiable arrays as positional arguments, and everything else as keyword arguments.
    """
    generators = seed_generators(layer)

    def call(*arrays, **constants):
        seeds = [generator.next() for generator in generators]

        def compute(*arrays):
            for generator, seed in zip(generators, seeds):  # replicas share the generators, but run one after the other
                generator.drawn = seed
            try:
                return layer(*arrays, **constants)
            finally:
                for generator in generators:
                    generator.drawn = None

        return keras.remat(compute)(*arrays)

    return call
