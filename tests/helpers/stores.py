"""Token stores for tests."""

from keras_transformer.data.preparation import write_store
from keras_transformer.data.token_store import TokenStore
from keras_transformer.utils.files import WorkDirectory, atomic_directory


def new_store(path, splits, tokenizer, **options):
    """Write a token store, which replaces the store at `path`. Return the opened store.

    Args:
        path: Directory of the store, which appears only when the store is complete.
        splits: {name: iterable of (source, target) texts}.
        tokenizer: `Tokenizer`.
        **options: See `write_store`.
    """
    with atomic_directory(path) as folder:
        write_store(WorkDirectory(folder, path), splits, tokenizer, {}, **options)
    return TokenStore(path)
