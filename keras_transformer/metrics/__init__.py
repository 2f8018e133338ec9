"""Scores and significance tests."""
