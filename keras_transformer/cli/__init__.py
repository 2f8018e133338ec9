"""Flags, messages and exit status, shared by all commands."""
