"""§5: schedule, optimizer and the training run."""
