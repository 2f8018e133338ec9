"""Dropout whose masks depend on the seed, the step and the replica, and on nothing else."""

import keras


class ReplicaSeedGenerator(keras.random.SeedGenerator):
    """A seed generator that folds the replica's number in; Keras' own gives all replicas the same masks.

    Attributes:
        drawn: A seed that was drawn ahead and is next until it is taken away, for what is computed twice; or None.
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
    """Return the number of the `tf.distribute` replica that runs this, or None outside of one."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return None
    return context.replica_id_in_sync_group


@keras.saving.register_keras_serializable("keras_transformer")
class Dropout(keras.layers.Layer):
    """Sets a share `rate` of its inputs to 0 in training and scales the rest by 1 / (1 - rate) (§5.4).

    Args:
        rate: Share that is dropped, 0 to 1; on TensorFlow the nearest multiple of 2⁻¹⁶.
        seed: Seed of the masks; None draws one.

    Call arguments:
        inputs: Any shape, floating.
        training: Whether to drop; else the inputs are returned.
    """

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.rate = rate
        self.seed = seed

    def build(self, input_shape=None):
        # Made here, not in __init__: here the variable's path names the layer, so a checkpoint can.
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
        """Save the seed's state, which Keras leaves out of its files, so that a loaded model draws the next masks."""
        if self.seed_generator:
            store["seed"] = keras.ops.convert_to_numpy(self.seed_generator.state)

    def load_own_variables(self, store):
        """Restore the seed's state."""
        if self.seed_generator:
            self.seed_generator.state.assign(store["seed"])

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


def _on_tensorflow(inputs, rate, seed):
    """Keras' own draws twice as many bits, which takes longest, and selects where this multiplies."""
    import tensorflow as tf

    dropped = round(rate * 2**16)
    seed = tf.cast(tf.math.floormod(seed, tf.int32.max - 1), tf.int32)  # XLA takes no other

    @tf.custom_gradient
    def masked(x):
        count = tf.size(x)
        drawn = tf.random.stateless_uniform([(count + 1) // 2], seed, None, None, tf.int32, alg="philox")
        drawn = tf.reshape(tf.reshape(tf.bitcast(drawn, tf.uint16), [-1])[:count], tf.shape(x))
        kept = tf.cast(drawn >= tf.constant(dropped, tf.uint16), x.dtype) * tf.cast(2**16 / (2**16 - dropped), x.dtype)
        return x * kept, lambda grad_out: grad_out * kept

    return masked(inputs)
