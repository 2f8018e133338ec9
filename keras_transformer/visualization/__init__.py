"""Attention maps, attention figures and learning curves."""
