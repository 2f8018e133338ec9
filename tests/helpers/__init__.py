"""Helpers that several test files share. The oracles are in `tests/oracles.py`."""
