"""The training run (§5): options, schedule, optimizer, callbacks."""
