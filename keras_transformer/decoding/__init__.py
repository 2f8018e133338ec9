"""Beam search (§6.1) and translation of texts."""
