"""From corpus files to batches of token ids."""
