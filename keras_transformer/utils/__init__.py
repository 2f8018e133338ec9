"""Files, locks, errors, progress, timing: helpers that know nothing of models."""
