"""A model of token sequences, whose updates are the same on any number of devices."""

import contextlib
import weakref

import keras
from keras import ops

from keras_transformer.data.token_batches import TokenBatches
from keras_transformer.data.tokenizers.base import PAD
from keras_transformer.layers.dropout import replica_id
from keras_transformer.layers.remat import seed_generators
from keras_transformer.models.batch_source import source_of, steps_of
from keras_transformer.models.fused_loss import fused_linear_cross_entropy
from keras_transformer.models.loss import SmoothedCrossEntropy, check_loss, smoothed_cross_entropy, token_weights
from keras_transformer.models.r_drop import side_by_side, twice
from keras_transformer.models.train_step import Steps
from keras_transformer.utils.errors import UserError


@keras.saving.register_keras_serializable("keras_transformer")
class Perplexity(keras.metrics.Mean):
    """e to the mean of its values, in nats per token."""

    def result(self):
        """Returns the perplexity so far."""
        return ops.exp(super().result())


class Seq2SeqModel(Steps, keras.Model):  # type: ignore[valid-type, misc]
    """A model of tokens given tokens: loss and metrics are weighted by token, whatever the batch looks like.

    A subclass gives `states(inputs, training)`, from which `logits(states)` follow. The loss is computed from
    the states (`compute_loss`), so that projection and cross-entropy can be one operation.
    """

    accumulate, remat = 1, False
    distribution = None
    """The `keras.distribution.Distribution` within whose scope the model was made, if there was one."""

    @property
    def vocabulary_weights(self):
        """The weights whose first axis is the vocabulary; here none are known."""
        return []

    @property
    def vocabulary_tables(self):
        """The weights that a model is told by its vocabulary, and does not learn; here none."""
        return []

    @property
    def projection(self):
        """The matrix `[vocab_size, d_model]` whose products with states are logits; None where they are not."""
        return None

    def build_metrics(self):
        """Makes the metrics; called where the variables are made, in the strategy's scope if there is one."""
        self.distribution = keras.distribution.distribution()
        self.batches_read = weakref.WeakKeyDictionary()  # of each TokenBatches, so that the next `fit` continues there
        self.token_metrics = [keras.metrics.Mean(name="nll"), Perplexity(name="perplexity")]

    def compile(self, *args, accumulate=1, remat=False, **kwargs):
        """Compile as Keras does, with two more options that save memory and make the same updates.

        `SmoothedCrossEntropy` sums each label's loss times its sample weight. Any other loss that takes logits is
        weighted and reduced as Keras does it. The sample weights of `TokenBatches` already divide by the number of
        tokens, so there such a loss should have `reduction="sum"`.

        Args:
            accumulate: Number of micro-batches whose gradients are added for an update.
            remat: Whether layers that can, the encoder's and the decoder's, are computed once more in the backward
                pass, so that what lies inside them is not kept.

        Raises:
            UserError: The model was made within the scope of a Keras distribution, and this is another; or no layer of
                it can be computed once more; or the loss takes probabilities or, with `accumulate`, does not return
                one value per label.
        """
        if keras.distribution.distribution() is not self.distribution:
            raise UserError(
                "a model's optimizer belongs on the same devices: make and compile the model within one scope of the "
                "keras.distribution"
            )
        check_loss(kwargs.get("loss", args[1] if len(args) > 1 else None), accumulate, self.vocab_size)
        self.accumulate, self.remat = accumulate, remat
        stacks = [layer for layer in self._flatten_layers(include_self=False) if hasattr(layer, "remat")]
        if remat and not stacks:
            raise UserError(f"remat is of models with an encoder or a decoder, which {type(self).__name__} has not")
        for stack in stacks:
            stack.remat = remat
            for layer in stack.layers if remat else ():
                seed_generators(layer)  # or it is told now that there are others
        optimizer = kwargs.get("optimizer", args[0] if args else None)
        if hasattr(optimizer, "scales_loss"):  # one that does itself what Keras would wrap it for
            optimizer.scales_loss = self.dtype_policy.name == "mixed_float16"
            kwargs["auto_scale_loss"] = False
        super().compile(*args, **kwargs)
        # All variables are made here: inside a first update they could not be, under a strategy or on JAX.
        self.optimizer.build(self.trainable_variables)
        if self._compile_metrics is not None:
            self._compile_metrics.build(
                keras.KerasTensor((None,), "int32"), keras.KerasTensor((None, self.vocab_size), "float32")
            )

    @property
    def passes(self):
        """How often an update goes forward through the model: twice with R-Drop."""
        return 2 if getattr(getattr(self, "loss", None), "r_drop", 0) else 1

    @property
    def sums_tokens(self):
        """Whether the loss is a sum over tokens, like `SmoothedCrossEntropy`, and not one that Keras reduces."""
        return hasattr(getattr(self, "loss", None), "token_losses")

    def loss_of(self, inputs, labels, weights, share=None, *, training):
        """Return the loss of a batch or micro-batch.

        Args:
            inputs: What `states` takes.
            labels: int `[batch, target_length]`.
            weights: float32 `[batch, target_length]`, or None where nothing is trained or Keras reduces the loss.
            share: Scalar float32, the factor that makes a micro-batch's loss its part of the batch's; None is 1.
            training: Whether to drop, and whether there may be a gradient.
        """
        if not self.sums_tokens:
            return self._keras_loss(labels, self.states(inputs, training=training), weights, share)
        if not training or self.passes == 1:
            return self.compute_loss(None, labels, self.states(inputs, training=training), weights, training=training)
        states = side_by_side(self.states(twice(inputs), training=True))
        labels, weights = (ops.repeat(array[..., None], 2, axis=-1) for array in (labels, weights / 2))
        return self.compute_loss(None, labels, states, weights)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Returns the loss to minimise and updates the metrics.

        Args:
            x: Not used.
            y: Labels, int `[batch, target_length]`; with R-Drop in training `[batch, target_length, 2]`, alike.
            y_pred: The decoder's states `[batch, target_length, d_model]`, not logits; or of both passes
                `[batch, target_length, 2, d_model]`.
            sample_weight: float32, like `y`; 0 on padding; None is `token_weights`, or nothing for a loss that Keras
                reduces.
            training: Whether there may be a gradient.

        Returns:
            Scalar float32: Σ weight · smoothed cross-entropy, including the R-Drop term, if any; or the value of a
            loss that Keras reduces.
        """
        if not self.sums_tokens:
            return self._keras_loss(y, y_pred, sample_weight)
        if sample_weight is None:
            sample_weight = token_weights(y)
        # Flat: of a matrix a Keras metric would take the mean over positions first, padding included.
        labels, weights = ops.reshape(y, (-1,)), ops.reshape(sample_weight, (-1,))
        states = ops.reshape(y_pred, (-1, y_pred.shape[-1]))
        in_pairs = self.passes == 2 and len(y_pred.shape) == 4
        mask = ops.cast(weights > 0, "float32") / (2 if in_pairs else 1)
        wants_logits = self._compile_metrics is not None  # the user's own metrics
        if type(self.loss) is SmoothedCrossEntropy and self.projection is not None and not wants_logits:
            r_drop = self.loss.r_drop if in_pairs else 0.0
            loss, smoothed, plain = fused_linear_cross_entropy(
                states, self.projection, labels, weights, self.loss.label_smoothing, training, r_drop
            )
        else:
            logits = self.logits(states)
            smoothed, plain = self.loss.token_losses(labels, logits)
            if in_pairs:
                smoothed += self.loss.pair_losses(logits)
            loss = ops.sum(smoothed * weights)
        self._loss_tracker.update_state(smoothed, sample_weight=mask)
        for metric in self.token_metrics:
            metric.update_state(plain, sample_weight=mask)
        if wants_logits:
            self._compile_metrics.update_state(labels, logits, sample_weight=mask)
        return loss

    def _keras_loss(self, labels, states, weights, share=None):
        """Return the loss as Keras reduces it, times `share`, and update the metrics."""
        logits = self.logits(states)
        loss = super().compute_loss(None, labels, logits, weights)
        if share is not None:
            loss = loss * share
        # Keras divides a replica's loss by the number of replicas.
        replicas = 1 if replica_id() is None else self.distribute_strategy.num_replicas_in_sync
        parts = 1 if share is None else self.accumulate
        self._loss_tracker.update_state(loss * (replicas * parts), sample_weight=ops.shape(labels)[0])
        counted = labels != PAD
        if weights is not None and len(weights.shape) == 2:
            counted = counted & (weights > 0)
        labels, mask = ops.reshape(labels, (-1,)), ops.reshape(ops.cast(counted, "float32"), (-1,))
        logits = ops.reshape(logits, (-1, logits.shape[-1]))
        plain = smoothed_cross_entropy(labels, logits, 0.0)[1]
        for metric in self.token_metrics:
            metric.update_state(plain, sample_weight=mask)
        if self._compile_metrics is not None:
            self._compile_metrics.update_state(labels, logits, sample_weight=mask)
        return loss

    def flops(self, rows, source_length, target_length):
        """Returns the floating point operations of a forward pass: here as if every parameter met every token."""
        return 2 * self.count_params() * rows * (source_length + target_length)

    def update_flops(self, rows, source_length, target_length):
        """Returns the floating point operations of an update: a backward pass is two forward passes."""
        return 3 * self.passes * self.flops(rows, source_length, target_length)

    def fit(self, x=None, *args, validation_data=None, **kwargs):
        """Train as Keras does; with `TokenBatches` an epoch is the corpus once, unless `steps_per_epoch` is given.

        Another `fit` of this model on the same `TokenBatches` continues with the batch after the last update, in the
        order and with the hidden words of the epochs that follow. A new `TokenBatches` begins at its `start`.

        Raises:
            UserError: The model is not compiled.
        """
        if not self.compiled:
            raise UserError(
                "the model must be compiled before fit. Call "
                "model.compile(**keras_transformer.compile_arguments(model.hparams))."
            )
        if steps := steps_of(self, validation_data):
            kwargs.setdefault("validation_steps", steps)
        validation_data = source_of(self, validation_data, endless=False)
        if not isinstance(x, TokenBatches):
            with self._on_its_devices():
                return super().fit(x, *args, validation_data=validation_data, **kwargs)
        kwargs.setdefault("steps_per_epoch", x.batches_per_epoch)
        kwargs["shuffle"] = False
        read, before = self.batches_read.get(x, 0), self._updates()
        source = source_of(self, x.replace(start=x.start + read), endless=True)
        try:
            with self._on_its_devices():
                return super().fit(source, *args, validation_data=validation_data, **kwargs)
        finally:
            self.batches_read[x] = read + self._updates() - before

    def _updates(self):
        return int(ops.convert_to_numpy(self.optimizer.iterations))

    def evaluate(self, x=None, *args, **kwargs):
        """As in Keras; `TokenBatches` are gone through once."""
        if steps := steps_of(self, x):
            kwargs.setdefault("steps", steps)
        with self._on_its_devices():
            return super().evaluate(source_of(self, x, endless=False), *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        """Return logits `[rows, target_length, vocab_size]` as a NumPy array, as in Keras.

        Args:
            x: (source, decoder_input), int `[rows, source_length]` and `[rows, target_length]`.
            *args: As in Keras.
            **kwargs: As in Keras.

        Raises:
            UserError: `x` is `TokenBatches`, whose batches have logits of different shapes.
        """
        if isinstance(x, TokenBatches):
            raise UserError(
                "predict takes arrays (source, decoder_input), got TokenBatches. To translate texts, use "
                "Translator(model, problem).translate(texts)."
            )
        with self._on_its_devices():
            return super().predict(x, *args, **kwargs)

    def get_compile_config(self):
        config = super().get_compile_config()
        return config and {
            **config,
            "accumulate": self.accumulate,
            "remat": self.remat,
        }  # nothing, where the model is not compiled

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))

    def _on_its_devices(self):
        """Return the scope of the model's distribution on JAX. On TensorFlow, Keras enters that of the strategy."""
        return self.distribution.scope() if self.distribution else contextlib.nullcontext()

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Nothing is left to build; Keras' own takes a batch away and fails on uneven replicas."""

    def _symbolic_build(self, iterator=None, data_batch=None):
        """Nothing is left to build."""
