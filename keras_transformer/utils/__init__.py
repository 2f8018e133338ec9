"""Helpers for files, errors, logging, progress bars and timing, independent of models."""
