"""Hyperparameters, registered names and plug-ins."""
