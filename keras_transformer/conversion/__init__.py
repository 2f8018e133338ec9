"""Conversion of a run's weights for engines other than Keras, without Keras."""
