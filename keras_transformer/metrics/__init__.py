"""Scores of translations, and significance tests."""
