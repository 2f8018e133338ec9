"""Pictures: attention maps and figures, learning curves."""
