"""One update and one evaluated batch, as each backend's `fit` wants them; all else of a model is the same on both."""

import keras


class TensorFlowSteps:
    """Steps that change the model's variables."""

    def train_step(self, data):
        """One update: the gradients of the batch's slices are added, then applied once."""
        gradients, _ = self.added_over_slices(self._gradients, data, ())
        self.optimizer.apply(gradients, self.trainable_variables)
        return self._metrics_for_keras()

    def _metrics_for_keras(self):
        import tensorflow as tf

        metrics = self.get_metrics_result()
        if isinstance(self.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Keras takes the mean over workers along an axis, which scalars do not have.
            metrics = {name: tf.reshape(value, (1,)) for name, value in metrics.items()}
        return metrics

    def in_turn(self, count, function, value):
        """Returns function(… function(1, function(0, value))), one after the other."""
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
        """Loss and metrics of one batch; draws no seeds."""
        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        self.loss_of(inputs, labels, weights, training=False)
        return self._metrics_for_keras()


class JaxSteps:
    """Steps from the variables' values to their next values.

    A step's state is (trainable, other, optimizer, metrics) variables' values, lists of arrays.
    """

    def train_step(self, state, data):
        """One update: the gradients of the batch's slices are added, then applied once."""
        import jax

        trainable, other, optimizer, metrics = state
        gradients_of = jax.grad(self._loss_and_state, has_aux=True)

        def gradients_and_state(batch, state):
            return gradients_of(trainable, state[0], optimizer, state[1], batch)

        gradients, (other, metrics) = self.added_over_slices(gradients_and_state, data, (other, metrics))
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        return self._metrics_result(metrics), (trainable, other, optimizer, metrics)

    def test_step(self, state, data):
        """Loss and metrics of one batch; draws no seeds. The state here lacks the optimizer's."""
        trainable, other, metrics = state
        batch = keras.utils.unpack_x_y_sample_weight(data)
        _, (other, metrics) = self._loss_and_state(trainable, other, None, metrics, batch, training=False)
        return self._metrics_result(metrics), (trainable, other, metrics)

    def in_turn(self, count, function, value):
        """Returns function(… function(1, function(0, value))), one after the other."""
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
