"""Two inexpensive metrics that reveal early whether a model ignores its source or its encoder has collapsed."""

import numpy as np
from keras import ops

from keras_transformer.backend.compilation import compiled
from keras_transformer.data.tokenizers.base import PAD

ROWS = 64
"""Maximum number of sentence pairs for the metrics."""
COLLAPSED = 0.01
"""Largest encoder deviation that counts as a collapse. Healthy encoders with normalized outputs have more than 0.04."""


class SourceHealth:
    """Health metrics of a model, computed on the middle batch of the validation split.

    Args:
        model: `Transformer`, compiled with its loss.
        batches: `TokenBatches` of the validation split.
    """

    def __init__(self, model, batches):
        (source, decoder_input), labels, _ = batches[batches.num_batches // 2]
        self.batch = source[:ROWS], decoder_input[:ROWS], labels[:ROWS]
        self.model = model
        self._compute = compiled(self._encode_and_loss, model)

    def measure(self):
        """Return the current metrics.

        Returns:
            A dict with these entries:

            - "encoder_deviation": standard deviation of the encoder outputs over the positions of a sentence, averaged
              over sentences and units.
            - "nll_shuffled": loss in nats per token with each source assigned to a wrong target. It should be far above
              `nll`, the loss with correct targets.
        """
        source, decoder_input, labels = self.batch
        memory, nll = map(np.array, self._compute(source, np.roll(source, 1, axis=0), decoder_input, labels))
        deviations = [states[ids != PAD].std(axis=0).mean() for states, ids in zip(memory, source) if ids.any()]
        return {
            "encoder_deviation": float(np.mean(deviations)),
            "nll_shuffled": float(nll[labels != PAD].mean()),
        }

    def _encode_and_loss(self, source, other_source, decoder_input, labels):
        """Return the encoder outputs of `source` and the loss in nats with `other_source` as the source.

        Their shapes are `[rows, source_length, d_model]` and `[rows, target_length]`.
        """
        memory = self.model.encode(source)
        states = self.model.states((other_source, decoder_input), training=False)
        return ops.cast(memory, "float32"), self.model.loss.token_losses(labels, self.model.logits(states))[1]


def collapse_warning(metrics, norm="post"):
    """Return a warning if the metrics show a collapsed encoder, otherwise "".

    Args:
        metrics: Result of `SourceHealth.measure`.
        norm: The hparam `norm`. The advice in the warning depends on it.
    """
    if not metrics["encoder_deviation"] <= COLLAPSED:  # NaN does not indicate a collapse
        return ""
    return (
        "the encoder has collapsed: its outputs are the same at every position of a sentence "
        f"(deviation {metrics['encoder_deviation']:.4f}); train again with a larger --warmup_steps"
        + (", a lower --learning_rate_scale or --norm=pre" if norm == "post" else " or a lower --learning_rate_scale")
    )
