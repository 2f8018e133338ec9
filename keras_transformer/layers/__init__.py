"""Keras layers of the Transformer (§3), one concept per module.

Importing this package imports Keras and registers the layers, so that `keras.saving.load_model` finds them.
"""

# ruff: noqa: E402
from keras_transformer.backend.loading import load_keras

load_keras()

from keras_transformer.layers.additive_attention import AdditiveAttention
from keras_transformer.layers.attention import (
    MultiHeadAttention,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from keras_transformer.layers.decoder import Decoder, DecoderLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import TiedEmbedding
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.normalization import LayerNormalization
from keras_transformer.layers.position import LearnedPositions, SinusoidalPositions
from keras_transformer.layers.residual import PostNorm, PreNorm
from keras_transformer.layers.restricted_attention import RestrictedAttention

__all__ = [
    "AdditiveAttention", "Decoder", "DecoderLayer", "Dropout", "Encoder", "EncoderLayer", "FeedForward",
    "LayerNormalization", "LearnedPositions", "MultiHeadAttention", "PostNorm", "PreNorm", "RestrictedAttention",
    "SinusoidalPositions", "TiedEmbedding", "causal_mask", "padding_mask", "scaled_dot_product_attention",
]  # fmt: skip
