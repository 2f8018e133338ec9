"""Corpora, tokenizers, prepared corpora on disk, and batches of token ids."""
