"""Corpora, tokenizers, the token store and batches of token ids."""
