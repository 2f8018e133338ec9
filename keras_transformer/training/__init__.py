"""Training (§5): options, learning-rate schedule, optimizer, callbacks and the training loop."""
