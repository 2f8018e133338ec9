"""What the commands share: flags, messages, exit status."""
