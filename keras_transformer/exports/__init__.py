"""Exporters for trained runs: SavedModel, CTranslate2, Hugging Face transformers, Argos Translate and `.keras`."""
