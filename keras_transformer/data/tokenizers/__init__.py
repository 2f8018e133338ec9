"""Tokenizers: texts to token ids and back."""
