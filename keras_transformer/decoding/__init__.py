"""Beam search (§6.1), translation of texts and evaluation."""
