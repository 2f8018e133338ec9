"""Trained models in other engines' formats."""
