"""Label-smoothed cross-entropy (§5.4) and helper functions for other Keras losses."""

import inspect
from typing import Any

import keras
from keras import ops

from keras_transformer.data.tokenizers.base import PAD
from keras_transformer.layers.dropout import replica_id
from keras_transformer.models.r_drop import divergence
from keras_transformer.utils.errors import UserError


def smoothed_cross_entropy(labels: Any, logits: Any, label_smoothing: float) -> tuple[Any, Any]:
    """Return the label-smoothed and the plain cross-entropy of each token.

    The target distribution is (1 − ε) on the label plus ε/V on every token of the vocabulary. The function computes the
    smoothed cross-entropy as log Σ exp z − (1 − ε) z_label − ε mean(z). This formula needs neither one-hot targets nor
    a second `[tokens, vocab_size]` tensor.

    Args:
        labels: int `[batch, length]`.
        logits: `[batch, length, vocab_size]`, floating point. The function casts them to float32.
        label_smoothing: ε.

    Returns:
        The smoothed and the plain cross-entropy, each float32 `[batch, length]`, in nats.
    """
    logits = ops.cast(logits, "float32")
    normalizer = ops.logsumexp(logits, axis=-1)
    gold = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    plain = normalizer - gold
    if not label_smoothing:
        return plain, plain
    smoothed = normalizer - (1.0 - label_smoothing) * gold - label_smoothing * ops.mean(logits, axis=-1)
    return smoothed, plain


@keras.saving.register_keras_serializable("keras_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Weighted mean of the label-smoothed cross-entropy over tokens (§5.4).

    In a `Transformer`, the loss is the sum of the tokens' losses, multiplied by their sample weights. By default, the
    weight of a label is 1 / (number of target tokens in the whole update), and the weight of padding is 0. The sum is
    therefore the mean over tokens, no matter how devices, workers and micro-batches divide the update.

    In other Keras models, the loss ignores positions that the Keras mask of the logits marks as padding. Keras divides
    the weighted sum by the sum of the weights (reduction "mean_with_sample_weight"). Without weights, the loss is the
    mean over the unmasked positions, on each `tf.distribute` replica. Weights must have the shape of the labels.

    Args:
        label_smoothing: ε.
        r_drop: α of R-Drop (`models.r_drop`), which `Seq2SeqModel` applies. 0 disables R-Drop.
    """

    def __init__(self, label_smoothing=0.0, name="smoothed_cross_entropy", r_drop=0.0):
        # Keras casts label ids to the dtype of the loss, and bfloat16 rounds integers above 256.
        super().__init__(name=name, reduction="mean_with_sample_weight", dtype="float32")
        self.label_smoothing, self.r_drop = label_smoothing, r_drop

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the smoothed cross-entropy `[batch, length]`, in nats."""
        return self.token_losses(ops.cast(y_true, "int32"), y_pred)[0]

    def token_losses(self, labels, logits):
        """Return `smoothed_cross_entropy` with the ε of this loss."""
        return smoothed_cross_entropy(labels, logits, self.label_smoothing)

    def pair_losses(self, logits):
        """Return the R-Drop term of each token twice, once per forward pass.

        Args:
            logits: `[2 · tokens, vocab_size]`, with the two passes of each token in consecutive rows.

        Returns:
            float32 `[2 · tokens]`, in nats.
        """
        log_p = ops.log_softmax(ops.cast(logits, "float32"))
        both = ops.stack([log_p[0::2], log_p[1::2]])
        return ops.repeat(divergence(ops.exp(both), both[0] - both[1], self.r_drop)[0], 2)

    def get_config(self) -> dict[str, Any]:
        config = {"name": self.name, "label_smoothing": self.label_smoothing}
        # Omit r_drop if it is 0, because the constructor of a subclass might not accept it.
        return {**config, "r_drop": self.r_drop} if self.r_drop else config


def check_loss(loss, accumulate):
    """Raise a `UserError` if a Keras loss expects probabilities, lacks a reduction, or does not support accumulation.

    Args:
        loss: The argument `loss` of `compile`, which is a `keras.losses.Loss`, a function, a name or None.
        accumulate: Number of micro-batches per update.
    """
    if hasattr(loss, "token_losses"):
        return
    if accumulate > 1:
        raise UserError(
            f"accumulate must be 1 with losses other than SmoothedCrossEntropy, got {accumulate}. Use accumulate=1."
        )
    if loss is None:
        return
    loss = keras.losses.get(loss)
    from_logits = getattr(loss, "from_logits", None)
    if from_logits is None and inspect.isfunction(loss) and "from_logits" in inspect.signature(loss).parameters:
        from_logits = inspect.signature(loss).parameters["from_logits"].default
    if from_logits is False:
        name = getattr(loss, "name", None) or loss.__name__
        raise UserError(
            f"loss must take logits, got {name} with from_logits=False. "
            "Use keras.losses.SparseCategoricalCrossentropy(from_logits=True)."
        )
    if getattr(loss, "reduction", "sum_over_batch_size") in (None, "none"):
        raise UserError('loss must have a reduction, got None. Use reduction="sum_over_batch_size" or "sum".')


def token_weights(labels):
    """Return the weights of labels, float32 `[batch, length]`, whose sum over all replicas is 1.

    Padding has weight 0, and all other labels have the same weight.
    """
    mask = ops.cast(labels != PAD, "float32")
    tokens = ops.sum(mask)
    if replica_id() is not None:
        import tensorflow as tf

        tokens = tf.distribute.get_replica_context().all_reduce("SUM", tokens)
    return mask / ops.maximum(tokens, 1.0)
