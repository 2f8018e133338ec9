"""§3 of the paper as Keras layers, one idea a file."""
