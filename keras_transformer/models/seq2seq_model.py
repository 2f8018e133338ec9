"""Base class of sequence-to-sequence models, whose updates are the same on any number of devices."""

import contextlib
import weakref

import keras
from keras import ops

from keras_transformer.data.token_batches import TokenBatches
from keras_transformer.data.tokenizers.base import PAD
from keras_transformer.layers.dropout import replica_id
from keras_transformer.layers.remat import seed_generators
from keras_transformer.models.batch_source import count_steps, data_errors, to_keras_input
from keras_transformer.models.fused_loss import fused_linear_cross_entropy
from keras_transformer.models.loss import SmoothedCrossEntropy, check_loss, smoothed_cross_entropy, token_weights
from keras_transformer.models.r_drop import side_by_side, twice
from keras_transformer.models.train_step import Steps
from keras_transformer.utils.errors import UserError


@keras.saving.register_keras_serializable("keras_transformer")
class Perplexity(keras.metrics.Mean):
    """Exponential of the mean negative log-probability per token."""

    def result(self):
        """Return the perplexity so far."""
        return ops.exp(super().result())


class Seq2SeqModel(Steps, keras.Model):  # type: ignore[valid-type, misc]
    """Sequence-to-sequence model whose loss and metrics are averages over target tokens.

    A subclass such as `Transformer` implements `states`, `logits`, `projection`, `vocabulary_weights` and `flops`.
    `compute_loss` takes the decoder's states instead of logits, so that it can fuse the projection with the
    cross-entropy.
    """

    accumulate, remat = 1, False
    distribution = None
    """The `keras.distribution.Distribution` in whose scope the model was created, or None."""

    @property
    def vocabulary_tables(self):
        """List of non-trainable weights that are computed from the vocabulary. Empty by default."""
        return []

    def build_metrics(self):
        """Create the metrics. `build` calls this method in the scope in which it creates the variables."""
        self.distribution = keras.distribution.distribution()
        # Number of batches read from each TokenBatches. The next call to `fit` skips these batches.
        self.batches_read = weakref.WeakKeyDictionary()
        self.token_metrics = [keras.metrics.Mean(name="nll"), Perplexity(name="perplexity")]

    def compile(self, *args, accumulate=1, remat=False, **kwargs):
        """Compile the model as in Keras, with two options that save memory and do not change the updates.

        `SmoothedCrossEntropy` multiplies the loss of each label by its sample weight and sums the products. Any other
        loss must take logits, and Keras applies the sample weights and the reduction. With `TokenBatches`, the
        reduction must be "sum", because the sample weights already include the division by the number of tokens.

        Args:
            *args: As in Keras.
            **kwargs: As in Keras.
            accumulate: Number of micro-batches whose gradients are accumulated for one update. Losses other than
                `SmoothedCrossEntropy` require 1.
            remat: Whether to recompute encoder and decoder layers in the backward pass instead of keeping their
                activations (rematerialization).

        Raises:
            UserError: The model was created in the scope of another Keras distribution or does not support `remat`;
                or the loss takes probabilities, has no reduction or does not support `accumulate`.
        """
        if keras.distribution.distribution() is not self.distribution:
            raise UserError(
                "the model was created and compiled in different scopes of keras.distribution. Move both calls into "
                "one scope."
            )
        check_loss(kwargs.get("loss", args[1] if len(args) > 1 else None), accumulate)
        self.accumulate, self.remat = accumulate, remat
        for stack in self._stacks():
            stack.remat = remat
        for layer in self._stacked_layers() if remat else ():
            seed_generators(layer)  # raises an error now, not in the first update, if `remat` is not supported
        optimizer = kwargs.get("optimizer", args[0] if args else None)
        if hasattr(optimizer, "scales_loss"):  # the optimizer itself scales the loss, without LossScaleOptimizer
            optimizer.scales_loss = self.dtype_policy.name == "mixed_float16"
            kwargs["auto_scale_loss"] = False
        super().compile(*args, **kwargs)
        # Create all variables here: with a `tf.distribute` strategy or on JAX, the first update cannot create them.
        self.optimizer.build(self.trainable_variables)
        if self._compile_metrics is not None:
            self._compile_metrics.build(
                keras.KerasTensor((None,), "int32"), keras.KerasTensor((None, self.vocab_size), "float32")
            )

    def _stacks(self):
        """Return the encoders and decoders, which support rematerialization."""
        return [layer for layer in self._flatten_layers(include_self=False) if hasattr(layer, "remat")]

    def _stacked_layers(self):
        return [layer for stack in self._stacks() for layer in stack.layers]

    @property
    def passes(self):
        """Number of forward passes per update, which is 2 with R-Drop and 1 otherwise."""
        return 2 if getattr(getattr(self, "loss", None), "r_drop", 0) else 1

    @property
    def sums_tokens(self):
        """True if the loss is a sum over tokens, like `SmoothedCrossEntropy`. False if Keras reduces the loss."""
        return hasattr(getattr(self, "loss", None), "token_losses")

    def loss_of(self, inputs, labels, weights, *, training):
        """Return the loss of a batch or micro-batch.

        Args:
            inputs: The inputs of `states`.
            labels: int `[batch, target_length]`.
            weights: float, int or bool `[batch, target_length]`. May be None in evaluation or for a loss that Keras
                reduces.
            training: Whether the caller computes the gradient of the loss. If so, dropout and R-Drop apply.

        Raises:
            UserError: As in `compute_loss`; or the loss is a sum over tokens, and `weights` has one weight per row.
        """
        weights = None if weights is None else ops.cast(weights, "float32")
        if self.sums_tokens and weights is not None and (len(weights.shape) == 1 or weights.shape[1] == 1):
            if labels.shape[1] != 1:
                raise UserError(
                    f"{type(self.loss).__name__} needs one sample weight per label, not per row. Pass weights in the "
                    "shape of the labels, [batch, target_length]."
                )
        self._clear_losses()  # Keras clears the losses of a model when it is called, but `states` does not call it
        if not training or self.passes == 1:
            return self.compute_loss(None, labels, self.states(inputs, training=training), weights, training=training)
        states = side_by_side(self.states(twice(inputs), training=True))
        labels, weights = (ops.repeat(array[..., None], 2, axis=-1) for array in (labels, weights / 2))
        return self.compute_loss(None, labels, states, weights)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Return the loss to minimize, and update the metrics.

        Args:
            x: Unused.
            y: Labels, int `[batch, target_length]`. With R-Drop in training, the labels for both passes,
                `[batch, target_length, 2]`.
            y_pred: The decoder's states, not logits: `[batch, target_length, d_model]`. With R-Drop in training, the
                states of both passes, `[batch, target_length, 2, d_model]`.
            sample_weight: float32 in the shape of `y`, 0 on padding. By default, all tokens have the same weight, and
                the weights add up to 1 (see `token_weights`). If Keras reduces the loss, the default is no weights.
            training: Whether the caller computes the gradient of the loss.

        Returns:
            The loss as a float32 scalar: Σ weight · smoothed cross-entropy, including the R-Drop term, or the loss that
            Keras has reduced, plus `losses`.

        Raises:
            UserError: The loss is a sum over tokens, and the model has weight regularizers or losses from `add_loss`;
                or a rematerialized layer has called `add_loss`.
        """
        if not self.sums_tokens:
            return self._keras_loss(y, y_pred, sample_weight)
        if count := len(self.losses):
            raise UserError(
                f"the model must have no weight regularizers and no losses from add_loss with "
                f"{type(self.loss).__name__}, got {count}. Compile the model with another loss, such as "
                "keras.losses.SparseCategoricalCrossentropy(from_logits=True)."
            )
        if sample_weight is None:
            sample_weight = token_weights(y)
        # Flatten, because Keras metrics would first average a matrix over all positions, including padding.
        labels, weights = ops.reshape(y, (-1,)), ops.reshape(sample_weight, (-1,))
        states = ops.reshape(y_pred, (-1, y_pred.shape[-1]))
        in_pairs = self.passes == 2 and len(y_pred.shape) == 4
        mask = ops.cast(weights > 0, "float32") / (2 if in_pairs else 1)
        needs_logits = self._compile_metrics is not None  # for the user's metrics
        if type(self.loss) is SmoothedCrossEntropy and self.projection is not None and not needs_logits:
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
        if needs_logits:
            self._compile_metrics.update_state(labels, logits, sample_weight=mask)
        return loss

    def _keras_loss(self, labels, states, weights):
        """Return the loss that Keras reduces, and update the metrics."""
        layers = self._stacked_layers() if self.remat else ()
        if any(part._get_own_losses() for layer in layers for part in layer._flatten_layers()):
            raise UserError(
                "remat=True does not support losses from add_loss in encoder and decoder layers. Compile the model "
                "with remat=False."
            )
        logits = self.logits(states)
        loss = super().compute_loss(None, labels, logits, weights)
        # Keras divides the loss of a replica by the number of replicas. Undo this division in the reported loss.
        replicas = 1 if replica_id() is None else self.distribute_strategy.num_replicas_in_sync
        self._loss_tracker.update_state(loss * replicas, sample_weight=ops.shape(labels)[0])
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

    def update_flops(self, rows, source_length, target_length):
        """Return the number of floating-point operations in an update. A backward pass counts as two forward passes."""
        return 3 * self.passes * self.flops(rows, source_length, target_length)

    def fit(self, x=None, *args, validation_data=None, **kwargs):
        """Train the model as in Keras.

        With `TokenBatches`, an epoch is one pass over the corpus unless `steps_per_epoch` is given. Another call with
        the same `TokenBatches` continues after the batch of the last update. A new `TokenBatches` begins at its
        `start`.

        Raises:
            UserError: The model is not compiled, or a chunk of the prepared corpus is damaged.
        """
        if not self.compiled:
            raise UserError(
                "the model must be compiled before fit. Call "
                "model.compile(**keras_transformer.compile_arguments(model.hparams))."
            )
        if steps := count_steps(self, validation_data):
            kwargs.setdefault("validation_steps", steps)
        validation_data = to_keras_input(self, validation_data, endless=False)
        if not isinstance(x, TokenBatches):
            with self.device_scope():
                return super().fit(x, *args, validation_data=validation_data, **kwargs)
        kwargs.setdefault("steps_per_epoch", x.batches_per_epoch)
        kwargs["shuffle"] = False
        batches_before, trained_before = self.batches_read.get(x, 0), self._num_batches()
        batches = to_keras_input(self, x.replace(start=x.start + batches_before), endless=True)
        with data_errors(x):
            try:
                with self.device_scope():
                    return super().fit(batches, *args, validation_data=validation_data, **kwargs)
            finally:
                self.batches_read[x] = batches_before + max(0, self._num_batches() - trained_before)

    def _num_batches(self):
        """Return the number of batches so far, or 0 if a failed update on JAX has deleted the optimizer's state."""
        try:
            # Unlike `iterations`, `_iterations` also counts batches whose gradients Keras accumulates.
            optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)  # of a LossScaleOptimizer
            return int(ops.convert_to_numpy(optimizer._iterations))
        except (RuntimeError, TypeError):  # the array has been deleted, or the variable has no value
            return 0

    def evaluate(self, x=None, *args, **kwargs):
        """Evaluate the model as in Keras. With `TokenBatches`, make one pass over the corpus."""
        if steps := count_steps(self, x):
            kwargs.setdefault("steps", steps)
        with data_errors(x), self.device_scope():
            return super().evaluate(to_keras_input(self, x, endless=False), *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        """Return logits `[rows, target_length, vocab_size]` as a NumPy array, as in Keras.

        Args:
            x: (source, decoder_input), int `[rows, source_length]` and `[rows, target_length]`.
            *args: As in Keras.
            **kwargs: As in Keras.

        Raises:
            UserError: `x` is a `TokenBatches`, whose batches have logits of different shapes.
        """
        if isinstance(x, TokenBatches):
            raise UserError(
                "the input of predict must be two arrays (source and decoder_input), got TokenBatches. To translate "
                "texts, use Translator(model, problem).translate(texts)."
            )
        with self.device_scope():
            return super().predict(x, *args, **kwargs)

    def export(self, filepath, format="tf_saved_model", verbose=None, input_signature=None, **kwargs):
        """Export the computation of the logits as in Keras, for batches of any size and length.

        The result has no tokenizer and no search. The command `export` writes a SavedModel that translates texts.

        Args:
            filepath: As in Keras.
            format: As in Keras.
            verbose: As in Keras.
            input_signature: As in Keras (default: `source` and `decoder_input`, int32 `[rows, length]`).
            **kwargs: As in Keras.
        """
        names = ("source", "decoder_input")
        default = [tuple(keras.InputSpec(shape=(None, None), dtype="int32", name=name) for name in names)]
        super().export(filepath, format, verbose, input_signature or default, **kwargs)

    def get_compile_config(self):
        config = super().get_compile_config()
        # The configuration is empty if the model is not compiled.
        return config and {**config, "accumulate": self.accumulate, "remat": self.remat}

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))

    def device_scope(self):
        """Return the scope of the model's distribution on JAX.

        On TensorFlow, the returned context has no effect, because Keras itself enters the strategy's scope.
        """
        return self.distribution.scope() if self.distribution else contextlib.nullcontext()

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Do nothing, because the model is already built.

        Keras' method would consume a batch, and would fail if the replicas' parts of the batch had different shapes.
        """

    def _symbolic_build(self, iterator=None, data_batch=None):
        """Do nothing, because the model is already built."""
