"""Constituency parsing as translation into linearised trees (§6.3)."""
