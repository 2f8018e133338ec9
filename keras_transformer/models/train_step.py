"""Training step with gradient accumulation for `fit`, and test step for `evaluate`, for each backend."""

import keras
from keras import ops

from keras_transformer.models.chunks import scan, split_rows
from keras_transformer.models.loss import token_weights


def accumulate_gradients(model, compute_gradients, data, state):
    """Accumulate gradients over the micro-batches of a batch, which run one after the other to save memory.

    Args:
        model: `Seq2SeqModel`, compiled. `model.accumulate` is the number of micro-batches.
        compute_gradients: Function of a micro-batch (inputs, labels, weights) and a state. It returns the gradients, a
            list of arrays with the shapes of the trainable variables, and the next state.
        data: A batch in Keras' format: inputs, labels and optional weights.
        state: Nested arrays, which each micro-batch passes to the next.

    Returns:
        The sum of the gradients, and the final state.
    """
    inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
    if weights is None and model.sums_tokens:
        weights = token_weights(labels)  # before the split, because the weights of the whole batch must sum to 1
    batch = (inputs, labels, weights)
    if model.accumulate == 1:
        return compute_gradients(batch, state)

    def add_micro_batch(carry, *arrays):
        total, state = carry
        gradients, state = compute_gradients(keras.tree.pack_sequence_as(batch, arrays), state)
        return ([a + b for a, b in zip(total, gradients)], state), []

    # With n micro-batches, each contains every n-th row of the batch.
    arrays = [ops.swapaxes(split_rows(array, model.accumulate), 0, 1) for array in keras.tree.flatten(batch)]
    zeros = [ops.zeros(variable.shape, variable.dtype) for variable in model.trainable_variables]
    return scan(add_micro_batch, (zeros, state), arrays, num_outputs=0)[0]


class TensorFlowSteps:
    """Steps that update the model's variables in place."""

    def train_step(self, data):
        """Perform one update with the accumulated gradients of a batch."""
        gradients, _ = accumulate_gradients(self, self._gradients, data, ())
        self.optimizer.apply(gradients, self.trainable_variables)
        return self._metrics_for_keras()

    def _metrics_for_keras(self):
        import tensorflow as tf

        metrics = self.get_metrics_result()
        if isinstance(self.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Keras averages metrics over workers along the first axis, which scalars lack.
            metrics = {name: tf.reshape(value, (1,)) for name, value in metrics.items()}
        return metrics

    def _gradients(self, batch, state):
        """Return the gradients of the scaled loss, and `state` unchanged."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self.optimizer.scale_loss(self.loss_of(*batch, training=True))
        gradients = tape.gradient(
            loss, self.trainable_variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )  # fmt: skip
        # The gradient of the embedding may be sparse.
        return [tf.convert_to_tensor(gradient) for gradient in gradients], state

    def test_step(self, data):
        """Compute the loss and metrics of one batch, without dropout."""
        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        self.loss_of(inputs, labels, weights, training=False)
        return self._metrics_for_keras()


class JaxSteps:
    """Stateless steps, which map the values of variables to their next values.

    The state of a training step is (trainable, other, optimizer, metrics): lists with the values of the model's
    trainable and other variables, the optimizer's variables and the metrics' variables.

    Attributes:
        jitted_train_step: The compiled `train_step` that `fit` calls, or None before the first call to `fit`.
    """

    jitted_train_step = None

    def _make_function(self, step_function, *args, **kwargs):
        """Return the function that Keras calls for each batch, and store the compiled `train_step`."""
        if step_function.__name__ == "train_step":
            self.jitted_train_step = step_function
        return super()._make_function(step_function, *args, **kwargs)

    def train_step(self, state, data):
        """Perform one update with the accumulated gradients of a batch."""
        import jax

        trainable, other, optimizer, metrics = state
        compute_gradients = jax.grad(self._loss_and_state, has_aux=True)

        def gradients_and_state(batch, state):
            return compute_gradients(trainable, state[0], optimizer, state[1], batch)

        gradients, (other, metrics) = accumulate_gradients(self, gradients_and_state, data, (other, metrics))
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        return self._metrics_result(metrics), (trainable, other, optimizer, metrics)

    def test_step(self, state, data):
        """Compute the loss and metrics of one batch, without dropout. The state lacks the optimizer's variables."""
        trainable, other, metrics = state
        batch = keras.utils.unpack_x_y_sample_weight(data)
        _, (other, metrics) = self._loss_and_state(trainable, other, None, metrics, batch, training=False)
        return self._metrics_result(metrics), (trainable, other, metrics)

    def _loss_and_state(self, trainable, other, optimizer, metrics, batch, training=True):
        """Return the scaled loss, and the next values of the non-trainable variables and of the metrics' variables."""
        variables = [*self.trainable_variables, *self.non_trainable_variables, *self.metrics_variables]
        values = [*trainable, *other, *metrics]
        if training:  # `scale_loss` reads the loss scale, a variable of the optimizer
            variables, values = variables + self.optimizer.variables, values + optimizer
        with keras.StatelessScope(zip(variables, values), collect_losses=True) as scope:
            loss = self.loss_of(*batch, training=training)
            if training:
                loss = self.optimizer.scale_loss(loss)
        return loss, (
            [scope.get_current_value(variable) for variable in self.non_trainable_variables],
            [scope.get_current_value(variable) for variable in self.metrics_variables],
        )

    def _metrics_result(self, metrics):
        with keras.StatelessScope(zip(self.metrics_variables, metrics)):
            return self.get_metrics_result()


Steps = {"tensorflow": TensorFlowSteps, "jax": JaxSteps}[keras.backend.backend()]
