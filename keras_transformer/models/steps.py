"""One update and one evaluated batch, as each backend's `fit` wants them; all else of a model is the same on both."""

import keras


class TensorFlowSteps:
    """Steps that change the model's variables."""

    def train_step(self, data):
        """One update: the gradients of the batch's slices are added, then applied once."""
        import tensorflow as tf

        total = None
        for inputs, labels, weights in self.slices(data):
            with tf.GradientTape() as tape:
                states = self.states(inputs, training=True)
                loss = self.optimizer.scale_loss(self.compute_loss(None, labels, states, weights))
            gradients = tape.gradient(loss, self.trainable_variables)
            if self.accumulate > 1:  # the embedding's are sparse
                gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
            total = _added(total, gradients)
        self.optimizer.apply(total, self.trainable_variables)
        return self.get_metrics_result()

    def test_step(self, data):
        """Loss and metrics of one batch; draws no seeds."""
        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        self.compute_loss(None, labels, self.states(inputs, training=False), weights)
        return self.get_metrics_result()


class JaxSteps:
    """Steps from the variables' values to their next values.

    A step's state is (trainable, other, optimizer, metrics) variables' values, lists of arrays.
    """

    def train_step(self, state, data):
        """One update: the gradients of the batch's slices are added, then applied once."""
        import jax

        trainable, other, optimizer, metrics = state
        gradients_of = jax.grad(self._loss_and_state, has_aux=True)
        total = None
        for batch in self.slices(data):
            gradients, (other, metrics) = gradients_of(trainable, other, optimizer, metrics, batch)
            total = _added(total, gradients)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, total, trainable)
        return self._metrics_result(metrics), (trainable, other, optimizer, metrics)

    def test_step(self, state, data):
        """Loss and metrics of one batch; draws no seeds. The state here lacks the optimizer's."""
        trainable, other, metrics = state
        batch = keras.utils.unpack_x_y_sample_weight(data)
        _, (other, metrics) = self._loss_and_state(trainable, other, None, metrics, batch, training=False)
        return self._metrics_result(metrics), (trainable, other, metrics)

    def _loss_and_state(self, trainable, other, optimizer, metrics, batch, training=True):
        """Returns the scaled loss, and the next values of the other and the metrics' variables."""
        inputs, labels, weights = batch
        variables = [*self.trainable_variables, *self.non_trainable_variables, *self.metrics_variables]
        values = [*trainable, *other, *metrics]
        if training:  # a loss scale is a variable of the optimizer
            variables, values = variables + self.optimizer.variables, values + optimizer
        with keras.StatelessScope(zip(variables, values)) as scope:
            loss = self.compute_loss(None, labels, self.states(inputs, training=training), weights)
            if training:
                loss = self.optimizer.scale_loss(loss)
        return loss, (
            [scope.get_current_value(variable) for variable in self.non_trainable_variables],
            [scope.get_current_value(variable) for variable in self.metrics_variables],
        )

    def _metrics_result(self, metrics):
        with keras.StatelessScope(zip(self.metrics_variables, metrics)):
            return self.get_metrics_result()


def _added(total, gradients):
    return gradients if total is None else [a + b for a, b in zip(total, gradients)]


Steps = {"tensorflow": TensorFlowSteps, "jax": JaxSteps}[keras.backend.backend()]
