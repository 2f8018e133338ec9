"""Function that loads a tokenizer from the folder of a run, a prepared corpus or an export."""

import importlib
from pathlib import Path

from keras_transformer.utils.errors import UserError

CLASSES = {
    "tokenizer.model": "keras_transformer.data.tokenizers.sentencepiece:SentencePieceTokenizer",
    "symbols.txt": "keras_transformer.data.tokenizers.symbols:SymbolTokenizer",
    "word_pieces.txt": "keras_transformer.data.tokenizers.word_pieces:WordPieceTokenizer",
    "marian_tokenizer.json": "keras_transformer.data.tokenizers.marian:MarianTokenizer",
    "tree_tokenizer.model": "keras_transformer.parsing.tokenizer:TreeTokenizer",
}
"""{name of the tokenizer's file: "module:class"}. The values are names, because `data` cannot import `parsing`."""
TOKENIZER_FILES = tuple(CLASSES)


def load_tokenizer(folder):
    """Return the `Tokenizer` whose file is in `folder`.

    Raises:
        UserError: The folder does not contain a tokenizer, or the file is damaged.
    """
    paths = [path for name in TOKENIZER_FILES if (path := Path(folder) / name).is_file()]
    if not paths:
        raise UserError(f"{folder} contains no tokenizer file such as {TOKENIZER_FILES[0]}. Check the path.")
    module, _, name = CLASSES[paths[0].name].partition(":")
    try:
        return getattr(importlib.import_module(module), name).from_bytes(paths[0].read_bytes())
    except ValueError as error:
        raise UserError(f"{paths[0]} is damaged: {error}") from None
    except RuntimeError:
        raise UserError(f"{paths[0]} is damaged: not a SentencePiece model") from None
