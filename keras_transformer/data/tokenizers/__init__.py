"""Tokenizers, which convert texts to token ids and back."""

from keras_transformer.data.tokenizers.base import Tokenizer
from keras_transformer.data.tokenizers.loading import load_tokenizer
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer

__all__ = ["SentencePieceTokenizer", "SymbolTokenizer", "Tokenizer", "load_tokenizer"]
