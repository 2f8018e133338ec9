"""Base class of tokenizers, which convert texts to token ids and back.

A tokenizer is saved as a single file. Every run directory contains a copy of this file.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from keras_transformer.data.language_tags import leading_tag
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_open
from keras_transformer.utils.text import UNSPACED

PAD, EOS, BOS, UNK = 0, 1, 2, 3
SPECIAL = ("<pad>", "</s>", "<s>", "<unk>")


class Tokenizer:
    """Base class of tokenizers.

    Attributes:
        file_name: Name of the tokenizer's file in a prepared corpus and in a run directory.
        vocab_size: Number of ids.
        tags: {language: tag} for the tags in the vocabulary, such as {"de": "<2de>"} (see `data.language_tags`).
        placeholders: Ids of `<ph1>`, `<ph2>`, …, or () if the vocabulary has no placeholders (see `data.placeholders`).
    """

    file_name: str
    tags: Mapping[str, str] = MappingProxyType({})
    placeholders: tuple[int, ...] = ()
    constraint = None
    """Constraint on the outputs of a search (see `decoding.search_options.SearchOptions`), or None."""

    @property
    def languages(self):
        """Codes of the target languages whose tags are pieces of the vocabulary, as a tuple."""
        return tuple(self.tags)

    @property
    def word_starts(self):
        """Array, float32 `[vocab_size]`: 1 for BOS, EOS and ids that begin a word, 0 for other ids.

        None if the tokenizer does not provide this array.
        """
        return None

    @property
    def hidden_ids(self):
        """Array, int32 `[vocab_size]`: for each id, the id (usually UNK) that replaces it in word dropout.

        Word dropout does not change PAD, BOS, EOS or placeholders.
        """
        ids = np.full(self.vocab_size, UNK, "int32")
        kept = [PAD, EOS, BOS, *self.placeholders]
        ids[kept] = kept
        return ids

    @property
    def id_type(self):
        """Smallest NumPy type that can store an id."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)

    def source_prefix(self, text):
        """Return the language tag at the beginning of a source, with the spaces around it, or "" without a tag."""
        return leading_tag(text, self.tags)

    def encode(self, texts):
        """Return the ids of each text, without BOS and EOS."""
        raise NotImplementedError

    def encode_targets(self, texts):
        """Return the ids of each target, without BOS and EOS. By default, targets are encoded like sources."""
        return self.encode(texts)

    def encode_prefixes(self, texts):
        """Return the ids of each target prefix. By default, prefixes are encoded like complete targets."""
        return self.encode_targets(texts)

    def resegment(self, ids, rate, seed):
        """Segment the text of each sequence of ids with BPE-dropout, and return the new ids.

        Args:
            ids: Sequences of ids, without BOS and EOS.
            rate: Probability that BPE-dropout skips a merge.
            seed: Seed of the random draws.

        Raises:
            UserError: The tokenizer does not use byte-pair encoding.
        """
        raise no_byte_pairs(f"a {type(self).__name__}")

    def decode(self, ids):
        """Return the text of each sequence of ids. PAD, BOS and EOS do not appear in the text."""
        raise NotImplementedError

    def decode_outputs(self, sources, ids):
        """Return the text of each sequence of ids that a model has generated for the texts `sources`."""
        return self.decode(ids)

    def reverse(self):
        """Return the tokenizer for the opposite translation direction, with the same ids. By default, return `self`."""
        return self

    def pieces(self, ids):
        """Return the piece of each id as a string."""
        raise UserError(f"{type(self).__name__} must implement pieces(ids), which returns the text of each id")

    def words(self, ids):
        """Return the words of a sequence of ids, and the index of the word to which each id belongs, int `[ids]`.

        In scripts without spaces between words, such as Chinese, each piece counts as a word.
        """
        ids, starts = np.asarray(ids, int), self.display_word_starts
        begins = np.ones(len(ids), bool)
        if starts is not None:
            pieces = self.pieces(ids)
            unspaced = np.array([bool(UNSPACED.search(piece)) for piece in pieces], bool)
            apart = (unspaced[1:] | unspaced[:-1]) & np.array([piece != "▁" for piece in pieces[:-1]], bool)
            begins[1:] = (starts[ids[1:]] == 1) | np.isin(ids[:-1], (BOS, EOS)) | apart
        word_of = np.cumsum(begins) - 1
        words = [ids[word_of == number] for number in range(begins.sum())]
        return [self.decode([word])[0].strip() or "".join(self.pieces(word)) for word in words], word_of

    @property
    def display_word_starts(self):
        """Array like `word_starts`, but for words in attention figures (see `words`). By default, the same array."""
        return self.word_starts

    @classmethod
    def from_bytes(cls, content):
        """Create a tokenizer from the content of its file, as bytes.

        Raises:
            ValueError, RuntimeError: The content is damaged.
        """
        raise NotImplementedError

    def to_bytes(self):
        """Return the content of the tokenizer's file as bytes."""
        raise NotImplementedError

    @property
    def fingerprint(self):
        """SHA-256 of the tokenizer's file, in hexadecimal."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def save(self, folder):
        """Write the tokenizer file to `folder`."""
        with atomic_open(Path(folder) / self.file_name, "wb") as file:
            file.write(self.to_bytes())


class ListTokenizer(Tokenizer):
    """Base class of tokenizers whose file is a list of pieces, one per line.

    Args:
        pieces: Pieces without the four special tokens. The piece at index n has the id n + 4.
    """

    def __init__(self, pieces):
        self._pieces = [*SPECIAL, *pieces]
        self._ids = {piece: i for i, piece in enumerate(self._pieces) if i >= len(SPECIAL)}
        self.vocab_size = len(self._pieces)

    def pieces(self, ids):
        return [self._pieces[i] for i in ids]

    @classmethod
    def from_bytes(cls, content):
        try:
            return cls(content.decode("utf-8").split("\n")[:-1])
        except UnicodeDecodeError:
            raise ValueError("not UTF-8") from None

    def to_bytes(self):
        return "".join(f"{piece}\n" for piece in self._pieces[len(SPECIAL) :]).encode()


def no_byte_pairs(what):
    """Return a `UserError` for using BPE-dropout with a tokenizer that does not use plain byte-pair encoding."""
    return UserError(f"bpe_dropout requires plain byte-pair encoding, which {what} does not use; unset bpe_dropout")


def text_ids(ids):
    """Return a sequence of ids as a list without PAD, BOS and EOS."""
    return [int(i) for i in ids if i not in (PAD, BOS, EOS)]
