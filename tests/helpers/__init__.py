"""What several test files share; the oracles are in `tests/oracles.py`."""
