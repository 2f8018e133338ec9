"""§6.1: beam search, and text in, text out."""
