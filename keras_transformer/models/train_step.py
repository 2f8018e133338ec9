"""An update with accumulated gradients, and an evaluated batch, as `fit` of each backend calls them."""

import keras
from keras import ops

from keras_transformer.models.fused_loss import divided
from keras_transformer.models.loss import divisor, token_weights


def accumulate_gradients(model, gradients_of, data, state):
    """Add up the gradients of a batch's micro-batches, computed one after the other to save memory.

    Args:
        model: `Seq2SeqModel`, compiled; `model.accumulate` is the number of micro-batches.
        gradients_of: Function of a micro-batch (inputs, labels, weights, share) and the state. It returns gradients,
            a list of arrays like the trainable variables, and the next state.
        data: A batch, as in Keras.
        state: Nested arrays, passed from each micro-batch to the next.

    Returns:
        The sum, and the last state.
    """
    inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
    if weights is None and model.sums_tokens:
        weights = token_weights(labels)  # of the whole batch
    if model.accumulate == 1:
        return gradients_of((inputs, labels, weights, None), state)
    if weights is None:  # the weights of rows that fill up micro-batches are then 0
        weights = ops.ones_like(labels, dtype="float32")
    batch = (inputs, labels, weights)
    whole = None if model.sums_tokens else divisor(model.loss, labels, weights)

    # Each micro-batch holds every n-th row, and as many as the others: empty rows have no weight.
    micro_batches = keras.tree.map_structure(lambda array: divided(array, model.accumulate), batch)

    def add(index, carried):
        total, state = carried
        part = keras.tree.map_structure(lambda array: array[:, index], micro_batches)
        share = None if whole is None else divisor(model.loss, *part[1:]) / whole
        gradients, state = gradients_of((*part, share), state)
        return [a + b for a, b in zip(total, gradients)], state

    zeros = [ops.zeros(variable.shape, variable.dtype) for variable in model.trainable_variables]
    return model.loop(model.accumulate, add, (zeros, state))


class TensorFlowSteps:
    """Steps that change the model's variables."""

    def train_step(self, data):
        """Make one update with the accumulated gradients of a batch."""
        gradients, _ = accumulate_gradients(self, self._gradients, data, ())
        self.optimizer.apply(gradients, self.trainable_variables)
        return self._metrics_for_keras()

    def _metrics_for_keras(self):
        import tensorflow as tf

        metrics = self.get_metrics_result()
        if isinstance(self.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Keras takes the mean over workers along an axis, which scalars do not have.
            metrics = {name: tf.reshape(value, (1,)) for name, value in metrics.items()}
        return metrics

    @staticmethod
    def loop(count, function, value):
        """Return function(… function(1, function(0, value)))."""
        import tensorflow as tf

        def step(number, value):
            return number + 1, function(number, value)

        return tf.while_loop(lambda number, _: number < count, step, (0, value), parallel_iterations=1)[1]

    def _gradients(self, batch, state):
        """Returns the gradients of the scaled loss, and the state, nothing."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self.optimizer.scale_loss(self.loss_of(*batch, training=True))
        gradients = tape.gradient(
            loss, self.trainable_variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )  # fmt: skip
        # The embedding's may be sparse.
        return [tf.convert_to_tensor(gradient) for gradient in gradients], state

    def test_step(self, data):
        """Compute loss and metrics of one batch, without dropout."""
        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        self.loss_of(inputs, labels, weights, training=False)
        return self._metrics_for_keras()


class JaxSteps:
    """Steps from the variables' values to their next values.

    A step's state is (trainable, other, optimizer, metrics) variables' values, lists of arrays.
    """

    def train_step(self, state, data):
        """Make one update with the accumulated gradients of a batch."""
        import jax

        trainable, other, optimizer, metrics = state
        gradients_of = jax.grad(self._loss_and_state, has_aux=True)

        def gradients_and_state(batch, state):
            return gradients_of(trainable, state[0], optimizer, state[1], batch)

        gradients, (other, metrics) = accumulate_gradients(self, gradients_and_state, data, (other, metrics))
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        return self._metrics_result(metrics), (trainable, other, optimizer, metrics)

    def test_step(self, state, data):
        """Compute loss and metrics of one batch, without dropout. This state lacks the variables of the optimizer."""
        trainable, other, metrics = state
        batch = keras.utils.unpack_x_y_sample_weight(data)
        _, (other, metrics) = self._loss_and_state(trainable, other, None, metrics, batch, training=False)
        return self._metrics_result(metrics), (trainable, other, metrics)

    @staticmethod
    def loop(count, function, value):
        """Return function(… function(1, function(0, value)))."""
        return keras.ops.fori_loop(0, count, function, value)

    def _loss_and_state(self, trainable, other, optimizer, metrics, batch, training=True):
        """Returns the scaled loss, and the next values of the other and the metrics' variables."""
        variables = [*self.trainable_variables, *self.non_trainable_variables, *self.metrics_variables]
        values = [*trainable, *other, *metrics]
        if training:  # a loss scale is a variable of the optimizer
            variables, values = variables + self.optimizer.variables, values + optimizer
        with keras.StatelessScope(zip(variables, values)) as scope:
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
