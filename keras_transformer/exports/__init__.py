"""A run as SavedModel, for CTranslate2, or as a `.keras` file."""
