"""Text to token ids and back. The tokenizer travels with the model: it is one file of the run directory."""

import hashlib
import re
from pathlib import Path

import numpy as np

from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_open

PAD, EOS, BOS, UNK = 0, 1, 2, 3
SPECIAL = ("<pad>", "</s>", "<s>", "<unk>")
CHANGE = "change it with --set problem.vocab_size=N"
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u30ff\u31f0-\u31ff\u3400-\u9fff"
    "\uf900-\ufaff\uff01-\uff0f\uff1a-\uff1f\uff66-\uff9f\U00020000-\U0003ffff]"
)
"""A character of a script without spaces between words: Thai, Lao, Myanmar, Khmer, kana, Han, and their punctuation."""


class Tokenizer:
    """Base of tokenizers.

    Attributes:
        file_name: Its file in a prepared corpus and in a run directory.
        vocab_size: Number of ids.
    """

    file_name: str
    constraint = None
    """What a search may output, a `constraint` of `decoding.search_options.SearchOptions`; None for texts."""

    @property
    def word_starts(self):
        """float32 `[vocab_size]`: 1 for ids that begin a word, and for BOS and EOS; None if ids do not tell."""
        return None

    @property
    def hidden_ids(self):
        """int32 `[vocab_size]`: what stands for each id in training where a word is hidden: UNK."""
        ids = np.full(self.vocab_size, UNK, "int32")
        ids[[PAD, EOS, BOS]] = PAD, EOS, BOS
        return ids

    @property
    def id_type(self):
        """NumPy type that stores an id."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)

    def encode(self, texts):
        """Returns the ids of each text, without BOS and EOS."""
        raise NotImplementedError

    def encode_targets(self, texts):
        """Returns the ids of each target, without BOS and EOS, where targets are not texts as sources are."""
        return self.encode(texts)

    def encode_prefixes(self, texts):
        """Returns the ids of what each target begins with."""
        return self.encode_targets(texts)

    def resegment(self, ids, rate, seed):
        """Returns each sequence of ids in other pieces, where each joint of two is left out with probability `rate`.

        Raises:
            UserError: Its ids are not pieces that byte-pair encoding put together.
        """
        raise no_byte_pairs(f"a {type(self).__name__}")

    def decode(self, ids):
        """Returns the text of each sequence of ids; PAD, BOS and EOS are left out."""
        raise NotImplementedError

    def decode_outputs(self, sources, ids):
        """Returns the text of each sequence of ids that a model gave for each of the texts `sources`."""
        return self.decode(ids)

    def pieces(self, ids):
        """Returns the piece of each id."""
        raise UserError(f"a {type(self).__name__} has no pieces(ids), which would show what its ids are")

    def words(self, ids):
        """Return the words that ids make, as texts, and the index of each id's word, int `[ids]`, ascending from 0.

        In scripts that are written without spaces, such as Chinese, each piece is a word.
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
        """As `word_starts`, of what is shown as a word."""
        return self.word_starts

    @classmethod
    def from_bytes(cls, content):
        """Return the tokenizer whose file has this content.

        Raises:
            ValueError, RuntimeError: The content is damaged.
        """
        raise NotImplementedError

    def to_bytes(self):
        """Returns the content of its file."""
        raise NotImplementedError

    @property
    def fingerprint(self):
        """SHA-256 of its file, in hexadecimal."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def save(self, folder):
        """Writes its file into `folder`."""
        with atomic_open(Path(folder) / self.file_name, "wb") as file:
            file.write(self.to_bytes())


class VocabularyTooLarge(UserError):
    """A text cannot fill a vocabulary of `vocab_size` pieces, `largest` at most."""

    def __init__(self, vocab_size, largest):
        super().__init__(
            f"the training text cannot fill a vocabulary of {vocab_size} pieces, at most {largest}; {CHANGE}"
        )
        self.largest = int(largest)


def no_byte_pairs(what):
    """Returns the `UserError` for a tokenizer whose pieces were not put together by byte-pair encoding alone."""
    return UserError(f"bpe_dropout is of byte-pair encoding alone, which {what} does not do")


def too_small(vocab_size, smallest):
    """Returns the `UserError` for a vocabulary of less than the `smallest` number of pieces: all characters."""
    return UserError(
        f"a vocabulary of {vocab_size} pieces does not hold the text's characters, which take at least {smallest}; "
        f"{CHANGE}"
    )


def nothing_to_learn():
    """Returns the `UserError` for a text without words."""
    return UserError("the training text holds nothing but blank lines; a vocabulary cannot be learned from it")


def flags(values):
    """Return truth values as float32."""
    return np.array(values, "float32")


def read_list(content):
    """Return the lines of a tokenizer's file.

    Raises:
        ValueError: The content is not UTF-8.
    """
    try:
        return content.decode("utf-8").split("\n")[:-1]
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
