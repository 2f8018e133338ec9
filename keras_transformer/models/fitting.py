"""How a model learns from `TokenBatches` with Keras' `fit`: one update, the same on any number of devices."""

import keras
from keras import ops

from keras_transformer.data.batches import TokenBatches
from keras_transformer.data.tokenizer import PAD


class Perplexity(keras.metrics.Mean):
    """e to the mean of its values, nats a token."""

    def result(self):
        """Returns the perplexity so far."""
        return ops.exp(super().result())


def token_weights(labels):
    """Returns float32 `[batch, length]`: 1 / (tokens of the batch), 0 on padding."""
    mask = ops.cast(labels != PAD, "float32")
    return mask / ops.maximum(ops.sum(mask), 1.0)


class TokenModel(keras.Model):
    """A model of tokens given tokens: loss and metrics are weighted by token, whatever the batch looks like.

    A subclass gives `states(inputs, training)`, from which `logits(states)` follow. The loss is computed from
    the states (`compute_loss`), so that projection and cross-entropy can be one operation.
    """

    accumulate = 1

    def build_metrics(self):
        """Makes the metrics; called where the variables are made, in the strategy's scope if there is one."""
        self.token_metrics = [keras.metrics.Mean(name="nll"), Perplexity(name="perplexity")]

    def compile(self, *args, accumulate=1, **kwargs):
        """As in Keras, and with `accumulate`: the slices of a batch whose gradients are added before an update."""
        self.accumulate = accumulate
        super().compile(*args, **kwargs)
        # Under a strategy Keras' own first update cannot make the optimizer's variables inside its graph.
        self.optimizer.build(self.trainable_variables)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Returns the loss to minimise and updates the metrics.

        Args:
            x: Not used.
            y: Labels, int `[batch, target_length]`.
            y_pred: The decoder's states `[batch, target_length, d_model]`, not logits.
            sample_weight: float32 `[batch, target_length]`; 0 on padding; None is `token_weights`.
            training: Not used.

        Returns:
            Scalar float32: Σ weight · smoothed cross-entropy.
        """
        logits = self.logits(y_pred)
        smoothed, plain = self.loss.token_losses(y, logits)
        if sample_weight is None:
            sample_weight = token_weights(y)
        mask = ops.cast(sample_weight > 0, "float32")
        # Flat: of a matrix a Keras metric would take the mean over positions first, padding included.
        flat_mask = ops.reshape(mask, (-1,))
        self._loss_tracker.update_state(ops.reshape(smoothed, (-1,)), sample_weight=flat_mask)
        for metric in self.token_metrics:
            metric.update_state(ops.reshape(plain, (-1,)), sample_weight=flat_mask)
        if self._compile_metrics is not None:  # the user's own
            flat_logits = ops.reshape(logits, (-1, logits.shape[-1]))
            self._compile_metrics.update_state(ops.reshape(y, (-1,)), flat_logits, sample_weight=flat_mask)
        return ops.sum(smoothed * sample_weight)

    def train_step(self, data):
        """One update on TensorFlow: gradients of the batch's slices added, then applied once."""
        import tensorflow as tf

        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if sample_weight is None:
            sample_weight = token_weights(y)
        total = None
        for first in range(self.accumulate):
            rows = slice(first, None, self.accumulate)
            with tf.GradientTape() as tape:
                states = self.states((x[0][rows], x[1][rows]), training=True)
                loss = self.compute_loss(None, y[rows], states, sample_weight[rows])
                loss = self.optimizer.scale_loss(loss)
            gradients = tape.gradient(loss, self.trainable_variables)
            if self.accumulate > 1:
                gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
                total = gradients if total is None else [a + b for a, b in zip(total, gradients)]
            else:
                total = gradients
        self.optimizer.apply(total, self.trainable_variables)
        return self.get_metrics_result()

    def test_step(self, data):
        """Loss and metrics of one batch; draws no seeds."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        self.compute_loss(x, y, self.states(x, training=False), sample_weight, training=False)
        return self.get_metrics_result()

    def fit(self, x=None, *args, validation_data=None, **kwargs):
        """As in Keras; for `TokenBatches` an epoch is the corpus once, unless `steps_per_epoch` says otherwise."""
        if isinstance(x, TokenBatches):
            kwargs.setdefault("steps_per_epoch", x.batches_per_epoch)
            kwargs["shuffle"] = False
            x = self._source_of(x, endless=True)
        return super().fit(x, *args, validation_data=self._source_of(validation_data, endless=False), **kwargs)

    def evaluate(self, x=None, *args, **kwargs):
        """As in Keras; `TokenBatches` are gone through once."""
        return super().evaluate(self._source_of(x, endless=False), *args, **kwargs)

    def get_compile_config(self):
        config = super().get_compile_config()
        return config and {**config, "accumulate": self.accumulate}  # nothing, where the model is not compiled

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))

    def _source_of(self, batches, endless):
        """What Keras is to read: on TensorFlow a dataset, with open shapes unless XLA compiles each shape."""
        if not isinstance(batches, TokenBatches):
            return batches
        batches = batches.replace(endless=endless)
        if keras.backend.backend() != "tensorflow":
            return batches
        strategy = self.distribute_strategy
        replicas = strategy.num_replicas_in_sync if strategy else 1
        return batches.replace(row_multiple=replicas, few_shapes=bool(self.jit_compile)).as_dataset()

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Nothing is left to build; Keras' own takes a batch away and fails on uneven replicas."""
