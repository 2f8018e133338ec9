"""The Transformer of Marian, whose pretrained models are published as OPUS-MT."""

import keras
from keras import ops

from keras_transformer.layers.residual import PostNorm
from keras_transformer.models.transformer import Transformer


@keras.saving.register_keras_serializable("keras_transformer")
class MarianPostNorm(PostNorm):
    """Post-norm residual with the ε of layer normalization that transformers uses for Marian."""

    epsilon = 1e-5


@keras.saving.register_keras_serializable("keras_transformer")
class MarianTransformer(Transformer):
    """Transformer with biases in attention and a fixed bias of the logits, as `MarianMTModel` of transformers.

    Marian's sinusoids are all sines followed by all cosines. Here they alternate, as in the paper (§3.5), so weights
    that come from Marian have their d_model channels reordered.

    Arguments, call arguments and result: as for `Transformer`. Published models have `activation="swish"` and
    `norm="marian"`.

    References:
        Junczys-Dowmunt et al., "Marian: Fast Neural Machine Translation in C++" (2018).
        Tiedemann and Thottingal, "OPUS-MT: Building open translation services for the World" (2020).
    """

    layer_arguments = {"use_bias": True}

    def build(self, input_shape=None):
        if self.built:
            return
        self.logits_bias = self.add_weight(
            name="logits_bias", shape=(self.vocab_size,), initializer="zeros", trainable=False
        )
        super().build(input_shape)

    @property
    def vocabulary_weights(self):
        return [*super().vocabulary_weights, self.logits_bias]

    def logits(self, states):
        logits = super().logits(states)
        return logits + ops.cast(self.logits_bias, logits.dtype)
