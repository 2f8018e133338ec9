"""Dropout whose masks depend only on the seed, the step and the replica."""

import keras

from keras_transformer.utils.errors import UserError


class ReplicaSeedGenerator(keras.random.SeedGenerator):
    """Seed generator whose seeds differ between replicas, unlike the seeds of a Keras `SeedGenerator`.

    Attributes:
        drawn: Seed that `next` returns without advancing the state, or None. `layers.remat` sets it to compute a
            layer twice with the same masks.
    """

    drawn = None

    def next(self, ordered=True):
        """Return the next seed, `[2]`, and advance the state."""
        if self.drawn is not None:
            return self.drawn
        seed = super().next(ordered)
        replica = replica_id()
        if replica is None:
            return seed
        return seed + keras.ops.cast(keras.ops.stack([replica * 1_000_003, 0]), seed.dtype)


def replica_id():
    """Return the index of the current `tf.distribute` replica, or None if there is only one."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return None
    return context.replica_id_in_sync_group


@keras.saving.register_keras_serializable("keras_transformer")
class Dropout(keras.layers.Layer):
    """Dropout layer (§5.4) that in training sets a fraction of the inputs to 0 and scales the others by 1 / (1 - rate).

    Args:
        rate: Fraction of inputs to drop, at least 0 and less than 1. On TensorFlow, the layer rounds it to a multiple
            of 2⁻¹⁶.
        seed: Seed for the masks, or None for a random seed.

    Call arguments:
        inputs: Array of any shape, floating point.
        training: Whether to apply dropout. Otherwise the layer returns its inputs.

    Raises:
        UserError: `rate` is out of range.
    """

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise UserError(f"rate must be at least 0 and less than 1, got {rate}")
        self.supports_masking = True
        self.rate = rate
        self.seed = seed

    def build(self, input_shape=None):
        # Create the generator in `build`, because its variable's path in checkpoints must include the layer's name.
        self.seed_generator = ReplicaSeedGenerator(self.seed, name="seed") if self.rate else None

    def call(self, inputs, training=False):
        if not (training and self.rate):
            return inputs
        if keras.backend.backend() == "tensorflow":
            return _on_tensorflow(inputs, self.rate, self.seed_generator.next())
        return keras.random.dropout(inputs, self.rate, seed=self.seed_generator)

    def compute_output_shape(self, input_shape):
        return input_shape

    def save_own_variables(self, store):
        """Save the state of the seed generator, which Keras omits, so that a loaded model does not repeat masks."""
        if self.seed_generator:
            store["seed"] = keras.ops.convert_to_numpy(self.seed_generator.state)

    def load_own_variables(self, store):
        """Restore the state of the seed generator. A layer that was saved with a rate of 0 has no state."""
        if self.seed_generator and "seed" in store.keys():
            self.seed_generator.state.assign(store["seed"])

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


def _on_tensorflow(inputs, rate, seed):
    """Apply dropout faster than Keras: draw 16 random bits per input instead of 32, and multiply by the mask."""
    import tensorflow as tf

    dropped = min(round(rate * 2**16), 2**16 - 1)
    seed = tf.cast(tf.math.floormod(seed, tf.int32.max - 1), tf.int32)  # XLA requires int32 seeds

    @tf.custom_gradient
    def masked(x):
        count = tf.size(x)
        bits = tf.random.stateless_uniform([(count + 1) // 2], seed, None, None, tf.int32, alg="philox")
        bits = tf.reshape(tf.reshape(tf.bitcast(bits, tf.uint16), [-1])[:count], tf.shape(x))
        mask = tf.cast(bits >= tf.constant(dropped, tf.uint16), x.dtype) * tf.cast(2**16 / (2**16 - dropped), x.dtype)
        return x * mask, lambda grad_out: grad_out * mask

    return masked(inputs)
