"""Two cheap figures that tell early when a model ignores its source, or its encoder has collapsed."""

import numpy as np
from keras import ops

from keras_transformer.backend.compilation import compiled
from keras_transformer.data.tokenizers.base import PAD

ROWS = 64
COLLAPSED = 0.01
"""Encoder deviation of a collapsed encoder, and less; its outputs are normalised, and healthy ones are above 0.04."""


class SourceHealth:
    """Measures a model on the middle one of the validation batches.

    Args:
        model: `Transformer`, compiled with its loss.
        batches: `TokenBatches`.
    """

    def __init__(self, model, batches):
        (source, decoder_input), labels, _ = batches[batches.num_batches // 2]
        self.batch = source[:ROWS], decoder_input[:ROWS], labels[:ROWS]
        self.model = model
        self._figures = compiled(self._encoded_and_losses, model)

    def measure(self):
        """Returns the figures.

        Returns:
            "encoder_deviation": standard deviation of the encoder's outputs over the positions of a sentence, a mean
            over sentences and units; and "nll_shuffled": nats a token with the sources changed round, which must be
            far above the true value.
        """
        source, decoder_input, labels = self.batch
        memory, nll = map(np.array, self._figures(source, np.roll(source, 1, axis=0), decoder_input, labels))
        deviations = [states[ids != PAD].std(axis=0).mean() for states, ids in zip(memory, source) if ids.any()]
        return {
            "encoder_deviation": float(np.mean(deviations)),
            "nll_shuffled": float(nll[labels != PAD].mean()),
        }

    def _encoded_and_losses(self, source, other_source, decoder_input, labels):
        """Returns the encoder's outputs `[rows, source_length, d_model]` and nats `[rows, target_length]`."""
        memory = self.model.encode(source)
        states = self.model.states((other_source, decoder_input), training=False)
        return ops.cast(memory, "float32"), self.model.loss.token_losses(labels, self.model.logits(states))[1]


def complaint(figures, norm="post"):
    """Returns a sentence on figures of `SourceHealth` that are those of a collapsed encoder; "" for others.

    Args:
        figures: Of `SourceHealth.measure`.
        norm: The hparams', for the advice.
    """
    if not figures["encoder_deviation"] <= COLLAPSED:  # one that is not finite is another matter
        return ""
    return (
        "the encoder has collapsed: its outputs are the same at every position of a sentence "
        f"(deviation {figures['encoder_deviation']:.4f}); begin again with more --warmup_steps"
        + (", a lower --learning_rate_scale or --norm=pre" if norm == "post" else " or a lower --learning_rate_scale")
    )
