"""§5.3: Adam; an update whose gradients are not finite is skipped, their norm can be bounded, their loss scaled."""

import keras
from keras import ops

BYPASSING = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "gradient_accumulation_steps",
             "loss_scale_factor")  # fmt: skip
"""Arguments of Keras' optimizers that would change weights or gradients where this one does not look."""
MOST_SKIPPED = 100
"""Of as many skipped updates the numbers are remembered."""
FIRST_LOSS_SCALE, LARGEST_LOSS_SCALE, GOOD_UPDATES = 2.0**15, 2.0**24, 2000
"""Where a loss's scale begins, how large it may grow, and after how many finite updates in a row it is doubled."""


@keras.saving.register_keras_serializable("keras_transformer")
class GuardedAdam(keras.optimizers.Optimizer):
    """Adam (Kingma & Ba, 2015) that looks at the norm of all gradients first, summed over replicas.

    If it is not finite, weights and slots stay as they are and the update is counted, so that the numbers of updates,
    batches and dropout masks go on together. Nothing here asks the device: `watched` does, when it is called.

    Gradients in float16 become 0 below 6e-8, so there the loss is scaled up and the gradients down (Micikevicius et al.
    2018, "Mixed Precision Training"). The scale is doubled after `GOOD_UPDATES` and halved by an update that is not
    finite, which is no fault then: only at a scale of 1 is it told as one.

    Args:
        learning_rate: Number or schedule.
        beta_1: Decay of the mean.
        beta_2: Decay of the variance.
        epsilon: ε > 0, added to the square root of the variance, which is 0 for embeddings without a gradient.
        clip_norm: Gradients of a larger norm are scaled down to it; None: they are not.
        ema_decay: Decay of an exponential moving average of the weights, which is kept beside them; None: there is
            none. The first updates weigh more, so that it soon forgets the initial weights: the decay of update t is
            at most (t − 1) / (t + 9).
        scales_loss: Whether the loss is scaled; `Seq2SeqModel.compile` asks for it where a model computes in float16.
        **arguments: As of every optimizer in Keras, but those that change weights or gradients besides.
    """

    def __init__(
        self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-7, clip_norm=None, ema_decay=None,
        scales_loss=False, name="adam", **arguments,
    ):  # fmt: skip
        for other in BYPASSING:
            if arguments.get(other):
                raise ValueError(f"GuardedAdam has no {other}: it would bypass the look at the gradients")
        if epsilon <= 0:
            raise ValueError(f"epsilon must be greater than 0, got {epsilon}. Use a small number such as 1e-9.")
        super().__init__(learning_rate, name=name, **arguments)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.clip_norm, self.ema_decay, self.scales_loss = clip_norm, ema_decay, scales_loss

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._means, self._variances = self.add_optimizer_variables(variables, ["momentum", "velocity"])
        self.averages = []
        if self.ema_decay is not None:
            self.averages = self.add_optimizer_variables(variables, "average")
            for average, variable in zip(self.averages, variables):
                average.assign(ops.copy(variable.value))  # JAX would give both one buffer
        self.loss_scale = self.good_updates = None
        if self.scales_loss:
            self.loss_scale = self._own((), "float32", "loss_scale")
            self.loss_scale.assign(FIRST_LOSS_SCALE)
            self.good_updates = self._own((), "int32", "good_updates")
        self.norm_total = self._own((), "float32", "norm_total")
        self.norm_largest = self._own((), "float32", "norm_largest")
        self.num_updates = self._own((), "int32", "num_updates")
        self.num_skipped = self._own((), "int32", "num_skipped")
        self.skipped = self._own((MOST_SKIPPED,), "int32", "skipped")

    def _own(self, shape, dtype, name):
        return self.add_variable(shape, initializer="zeros", dtype=dtype, aggregation="only_first_replica", name=name)

    @property
    def scale_variables(self):
        """What a training in another precision has not, so that a checkpoint may lack it."""
        return [self.loss_scale, self.good_updates] if self.scales_loss else []

    def scale_loss(self, loss):
        """Returns the loss times its scale."""
        return loss * self.loss_scale.value if self.scales_loss else loss

    @property
    def watch_variables(self):
        """What `watched` reads: no part of the training's state, so in no checkpoint."""
        return [self.norm_total, self.norm_largest, self.num_updates, self.num_skipped, self.skipped]

    def watched(self):
        """Returns what was seen since the last call, and begins anew.

        Returns:
            {"gradient_norm": mean, "largest_gradient_norm"} of the updates that were made, before clipping, empty if
            there were none, with "loss_scale", where the loss is scaled; and the numbers, from 1, of the updates that
            were skipped, of the first `MOST_SKIPPED` of them.
        """
        total, largest, made, skipped, numbers = (
            ops.convert_to_numpy(variable.value) for variable in self.watch_variables
        )
        for variable in self.watch_variables:
            variable.assign(ops.zeros_like(variable.value))
        norms = {"gradient_norm": float(total / made), "largest_gradient_norm": float(largest)} if made else {}
        if norms and self.scales_loss:
            norms["loss_scale"] = float(ops.convert_to_numpy(self.loss_scale.value))
        return norms, [int(number) for number in numbers[: int(skipped)]]

    def _backend_update_step(self, gradients, variables, learning_rate):
        gradients = self._summed(gradients, variables)
        if self.scales_loss:
            gradients = [gradient / ops.cast(self.loss_scale.value, gradient.dtype) for gradient in gradients]
        norm = ops.sqrt(sum(_sum_of_squares(ops.cast(gradient, "float32")) for gradient in gradients))
        finite = ops.isfinite(norm)
        self._note(norm, finite)
        if self.scales_loss:
            self._rescale(finite)
        # NaN × 0 is NaN, so what is not finite must not come near the weights.
        gradients = ops.cond(
            finite, lambda: list(gradients), lambda: [ops.zeros_like(gradient) for gradient in gradients]
        )
        if self.clip_norm is not None:
            scale = self.clip_norm / ops.maximum(ops.where(finite, norm, 1.0), self.clip_norm)
            gradients = [gradient * ops.cast(scale, gradient.dtype) for gradient in gradients]
        super()._backend_update_step(gradients, variables, (learning_rate, ops.cast(finite, "float32")))

    def _summed(self, gradients, variables):
        """The gradients of all replicas together, dense."""
        if keras.backend.backend() != "tensorflow":
            return gradients
        import tensorflow as tf

        summed = super()._all_reduce_sum_gradients(zip(gradients, variables))
        return [tf.convert_to_tensor(gradient) for gradient, _ in summed]

    def _all_reduce_sum_gradients(self, gradients_and_variables):
        """Nothing: where Keras calls this, on TensorFlow, they are summed already."""
        return gradients_and_variables

    def _note(self, norm, finite):
        made, place = ops.cast(finite, "int32"), self.num_skipped.value
        fault = ops.logical_not(finite)
        if self.scales_loss:
            fault = fault & (self.loss_scale.value <= 1)
        norm = ops.where(finite, norm, 0.0)
        self.norm_total.assign(self.norm_total.value + norm)
        self.norm_largest.assign(ops.maximum(self.norm_largest.value, norm))
        self.num_updates.assign(self.num_updates.value + made)
        here = (ops.arange(MOST_SKIPPED, dtype="int32") == place) & fault
        number = ops.cast(self.iterations.value + 1, "int32")
        self.skipped.assign(ops.where(here, number, self.skipped.value))
        self.num_skipped.assign(place + ops.cast(fault, "int32"))

    def _rescale(self, finite):
        good = ops.where(finite, self.good_updates.value + 1, 0)
        grows = good >= GOOD_UPDATES
        factor = ops.where(finite, ops.where(grows, 2.0, 1.0), 0.5)
        self.loss_scale.assign(ops.clip(self.loss_scale.value * factor, 1.0, LARGEST_LOSS_SCALE))
        self.good_updates.assign(ops.where(grows, 0, good))

    def update_step(self, gradient, variable, rates):
        """One variable's update.

        Args:
            gradient: Its gradient.
            variable: The variable.
            rates: The learning rate, and 1, or 0 if nothing is to change; scalars.
        """
        learning_rate, made = (ops.cast(rate, variable.dtype) for rate in rates)
        gradient = ops.cast(gradient, variable.dtype)
        step = ops.cast(self.iterations + 1, variable.dtype)
        decay_1, decay_2 = (ops.power(ops.cast(beta, variable.dtype), step) for beta in (self.beta_1, self.beta_2))
        index = self._get_variable_index(variable)
        mean, variance = self._means[index], self._variances[index]
        if keras.backend.backend() == "tensorflow" and keras.backend.standardize_dtype(variable.dtype) == "float32":
            # One pass over gradient, weights and slots; as single operations it would be ten. It is given β, of which
            # 1 − β has too few digits in fewer bits.
            _apply_adam(
                variable, mean.value, variance.value, gradient, made * learning_rate, (decay_1, decay_2),
                [1 - made * (1 - beta) for beta in (self.beta_1, self.beta_2)], self.epsilon,
            )  # fmt: skip
        else:
            self.assign_add(mean, (gradient - mean) * (made * (1 - self.beta_1)))
            self.assign_add(variance, (ops.square(gradient) - variance) * (made * (1 - self.beta_2)))
            rate = made * learning_rate * ops.sqrt(1 - decay_2) / (1 - decay_1)
            self.assign_sub(variable, mean * rate / (ops.sqrt(variance) + self.epsilon))
        if self.averages:
            average = self.averages[index]
            share = 1 - ops.minimum((step - 1) / (step + 9), self.ema_decay)
            self.assign_add(average, (variable - average) * (made * share))

    def get_config(self):
        own = ("beta_1", "beta_2", "epsilon", "clip_norm", "ema_decay", "scales_loss")
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}


def _sum_of_squares(array):
    if keras.backend.backend() != "tensorflow":
        return ops.sum(ops.square(array))
    import tensorflow as tf

    return 2 * tf.nn.l2_loss(array)  # one pass, not two


def _apply_adam(variable, mean, variance, gradient, learning_rate, powers, betas, epsilon):
    import tensorflow as tf

    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle, m=mean.handle, v=variance.handle, beta1_power=powers[0], beta2_power=powers[1],
        lr=learning_rate, beta1=betas[0], beta2=betas[1], epsilon=tf.cast(epsilon, variable.dtype), grad=gradient,
    )  # fmt: skip
