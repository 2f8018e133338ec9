"""A run directory: configuration, tokenizer, checkpoints, metrics, manifest."""
