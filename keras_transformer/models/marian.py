"""The Transformer variant of Marian, the toolkit behind the pretrained OPUS-MT models."""

import keras
from keras import ops

from keras_transformer.layers.residual import PostNorm
from keras_transformer.models.transformer import Transformer


@keras.saving.register_keras_serializable("keras_transformer")
class MarianPostNorm(PostNorm):
    """Post-norm residual connection with the ε that Hugging Face transformers uses for Marian's layer normalization."""

    epsilon = 1e-5


@keras.saving.register_keras_serializable("keras_transformer")
class MarianTransformer(Transformer):
    """Transformer with biases in attention and a constant bias on the logits, like `transformers.MarianMTModel`.

    Marian's positional encoding consists of all sines followed by all cosines. In this class, sines and cosines
    alternate, as in the paper (§3.5). The conversion of Marian's weights therefore reorders the d_model channels.

    The arguments, the call arguments and the result are the same as for `Transformer`. Published models have
    `activation="swish"` and `norm="marian"`.

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
