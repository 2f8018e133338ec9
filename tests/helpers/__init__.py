"""Helpers of several test files. The oracles are in `tests/oracles.py`."""
