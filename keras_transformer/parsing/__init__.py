"""Constituency parsing as translation to linearized trees (§6.3)."""
