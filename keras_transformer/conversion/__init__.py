"""Conversion of a run's weights for other engines, without importing Keras."""
