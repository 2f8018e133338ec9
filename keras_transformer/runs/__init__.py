"""Run directories: configuration, tokenizer, checkpoints, metrics, manifest."""
