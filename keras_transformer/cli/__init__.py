"""Flags, messages and exit statuses that all commands share."""
