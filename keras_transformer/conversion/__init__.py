"""Conversion of trained weights to the formats of other engines, without importing Keras."""
