"""Helpers that several test files share. The paper's equations are in `tests/oracles.py`."""
