"""Exports of a run: SavedModel, CTranslate2, Hugging Face transformers, and `.keras` file."""
