"""Adam (§5.3) that skips updates with non-finite gradients, clips by global norm and scales the loss in float16."""

import keras
from keras import ops

FIRST_LOSS_SCALE, LARGEST_LOSS_SCALE, GOOD_UPDATES = 2.0**15, 2.0**24, 2000
"""Initial and maximum loss scale, and the number of consecutive finite updates after which the scale doubles."""


@keras.saving.register_keras_serializable("keras_transformer")
class GuardedAdam(keras.optimizers.Optimizer):
    """Adam (Kingma & Ba, 2015) that first checks the global norm of the gradients' sum over replicas.

    If the norm is not finite, the optimizer skips the update: weights, moments and averages keep their values, and only
    the step count increases. In float16, it scales the loss (Micikevicius et al. 2018, "Mixed Precision Training"). A
    skipped update halves the loss scale, and `GOOD_UPDATES` consecutive finite updates double it. With loss scaling, a
    skipped update counts as a fault only if the scale is 1.

    Args:
        learning_rate: Number or `LearningRateSchedule`.
        beta_1: Decay of the first moment.
        beta_2: Decay of the second moment.
        epsilon: ε, greater than 0, because the second moment of an unused embedding is 0.
        clip_norm: Maximum global gradient norm; None disables clipping.
        ema_decay: Decay of a moving average of the weights, or None for no average. The decay of update t is at most
            (t − 1) / (t + 9), so the average soon forgets the initial weights.
        scales_loss: Whether to scale the loss; `Seq2SeqModel.compile` sets it for models in `mixed_float16`.
    """

    def __init__(
        self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-7, clip_norm=None, ema_decay=None,
        scales_loss=False, name="adam",
    ):  # fmt: skip
        if epsilon <= 0:
            raise ValueError(f"epsilon must be greater than 0, got {epsilon}. Use a small number such as 1e-9.")
        super().__init__(learning_rate, name=name)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.clip_norm, self.ema_decay, self.scales_loss = clip_norm, ema_decay, scales_loss

    def get_config(self):
        names = ("beta_1", "beta_2", "epsilon", "clip_norm", "ema_decay", "scales_loss", "name")
        return {"learning_rate": super().get_config()["learning_rate"], **{name: getattr(self, name) for name in names}}

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._means, self._variances = self.add_optimizer_variables(variables, ["momentum", "velocity"])
        self.averages = [] if self.ema_decay is None else self.add_optimizer_variables(variables, "average")
        for average, variable in zip(self.averages, variables):
            average.assign(ops.copy(variable.value))  # without the copy, both variables share a buffer on JAX
        self.scale_variables = []
        if self.scales_loss:
            self.scale_variables = [*self._scalars("float32", "loss_scale"), *self._scalars("int32", "good_updates")]
            self.loss_scale, self.good_updates = self.scale_variables
            self.loss_scale.assign(FIRST_LOSS_SCALE)
        # Statistics for `watched`. Checkpoints do not contain them.
        self.watch_variables = [
            *self._scalars("float32", "norm_total", "norm_largest"),
            *self._scalars("int32", "num_updates", "num_faults", "first_fault"),
        ]

    def _scalars(self, dtype, *names):
        own = {"shape": (), "initializer": "zeros", "dtype": dtype, "aggregation": "only_first_replica"}
        return [self.add_variable(name=name, **own) for name in names]

    def scale_loss(self, loss):
        """Return the loss, multiplied by the loss scale if the optimizer scales the loss."""
        return loss * self.loss_scale.value if self.scales_loss else loss

    def watched(self):
        """Read the statistics of the updates since the last call, and reset them.

        Returns:
            A tuple (norms, number of faults, step of the first fault, counted from 1). The norms, before clipping, are
            {"gradient_norm": mean, "largest_gradient_norm": maximum} over the finite updates, with the current
            "loss_scale" if the optimizer scales the loss. Without a finite update, the dict is empty.
        """
        total, largest, made, faults, first = (ops.convert_to_numpy(one.value).item() for one in self.watch_variables)
        for variable in self.watch_variables:
            variable.assign(ops.zeros_like(variable.value))
        norms = {"gradient_norm": total / made, "largest_gradient_norm": largest} if made else {}
        if norms and self.scales_loss:
            norms["loss_scale"] = float(ops.convert_to_numpy(self.loss_scale.value))
        return norms, faults, first

    def _backend_update_step(self, gradients, variables, learning_rate):
        if keras.backend.backend() == "tensorflow":  # sum gradients over replicas, and make them dense
            import tensorflow as tf

            summed = super()._all_reduce_sum_gradients(zip(gradients, variables))
            gradients = [tf.convert_to_tensor(gradient) for gradient, _ in summed]
        fault = True
        if self.scales_loss:
            fault = self.loss_scale.value <= 1
            gradients = [gradient / ops.cast(self.loss_scale.value, gradient.dtype) for gradient in gradients]
        norm = ops.sqrt(sum(_sum_of_squares(ops.cast(gradient, "float32")) for gradient in gradients))
        finite = ops.isfinite(norm)
        self._watch(norm, finite, ops.logical_not(finite) & fault)
        if self.scales_loss:
            self._rescale(finite)
        # NaN × 0 is NaN, so zeros replace all gradients of a skipped update.
        gradients = ops.cond(finite, lambda: list(gradients), lambda: [ops.zeros_like(one) for one in gradients])
        if self.clip_norm is not None:
            scale = self.clip_norm / ops.maximum(ops.where(finite, norm, 1.0), self.clip_norm)
            gradients = [gradient * ops.cast(scale, gradient.dtype) for gradient in gradients]
        super()._backend_update_step(gradients, variables, (learning_rate, ops.cast(finite, "float32")))

    def _all_reduce_sum_gradients(self, gradients_and_variables):
        """Return the argument unchanged. On TensorFlow, `_backend_update_step` has already summed the gradients."""
        return gradients_and_variables

    def _watch(self, norm, finite, fault):
        total, largest, made, faults, first = self.watch_variables
        norm, number = ops.where(finite, norm, 0.0), ops.cast(self.iterations.value + 1, "int32")
        total.assign(total.value + norm)
        largest.assign(ops.maximum(largest.value, norm))
        made.assign(made.value + ops.cast(finite, "int32"))
        first.assign(ops.where(fault & (faults.value == 0), number, first.value))
        faults.assign(faults.value + ops.cast(fault, "int32"))

    def _rescale(self, finite):
        good = ops.where(finite, self.good_updates.value + 1, 0)
        factor = ops.where(finite, ops.where(good >= GOOD_UPDATES, 2.0, 1.0), 0.5)
        self.loss_scale.assign(ops.clip(self.loss_scale.value * factor, 1.0, LARGEST_LOSS_SCALE))
        self.good_updates.assign(ops.where(good >= GOOD_UPDATES, 0, good))

    def update_step(self, gradient, variable, rates):
        """Update one variable.

        Args:
            gradient: Gradient of the loss with respect to the variable.
            variable: The variable.
            rates: Two scalars: the learning rate, and 1 to apply the update or 0 to skip it.
        """
        learning_rate, made = (ops.cast(rate, variable.dtype) for rate in rates)
        gradient, step = ops.cast(gradient, variable.dtype), ops.cast(self.iterations + 1, variable.dtype)
        powers = [ops.power(ops.cast(beta, variable.dtype), step) for beta in (self.beta_1, self.beta_2)]
        index = self._get_variable_index(variable)
        mean, variance = self._means[index], self._variances[index]
        if keras.backend.backend() == "tensorflow" and keras.backend.standardize_dtype(variable.dtype) == "float32":
            import tensorflow as tf

            # One pass over the arrays instead of ten. Only for float32: in shorter types, 1 − β would lose digits.
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle, m=mean.value.handle, v=variance.value.handle, grad=gradient,
                lr=made * learning_rate, beta1_power=powers[0], beta2_power=powers[1],
                beta1=1 - made * (1 - self.beta_1), beta2=1 - made * (1 - self.beta_2), epsilon=self.epsilon,
            )  # fmt: skip
        else:
            self.assign_add(mean, (gradient - mean) * (made * (1 - self.beta_1)))
            self.assign_add(variance, (ops.square(gradient) - variance) * (made * (1 - self.beta_2)))
            rate = made * learning_rate * ops.sqrt(1 - powers[1]) / (1 - powers[0])
            self.assign_sub(variable, mean * rate / (ops.sqrt(variance) + self.epsilon))
        if self.averages:
            share = 1 - ops.minimum((step - 1) / (step + 9), self.ema_decay)
            self.assign_add(self.averages[index], (variable - self.averages[index]) * (made * share))


def _sum_of_squares(array):
    if keras.backend.backend() != "tensorflow":
        return ops.sum(ops.square(array))
    import tensorflow as tf

    return 2 * tf.nn.l2_loss(array)  # one pass over the array instead of two
