"""Word pieces (§5.1, en-fr). TensorFlow Text learns them, and plain Python or a TensorFlow graph applies them.

Normalization replaces each run of white space with one space. As in `str.split()`, white space includes no-break spaces
and line ends. The marker "▁" before a word represents the space, so "dit : « non »" keeps its spaces. Runs of letters
and digits are tokenized separately from runs of other characters, as in "▁l|'|homme". Greedy longest match splits each
run into pieces.

Decoding the ids of a normalized text returns the same text. The tokenizer escapes "▁", the backslash and characters
that are not pieces as "\\CODE;" with the decimal code point. The characters of an escape are always pieces, so the ids
of a text never contain UNK.
"""

import collections
import math
import re
import sys
import unicodedata

import numpy as np

from keras_transformer.data.tokenizers.base import BOS, EOS, SPECIAL, UNK, ListTokenizer
from keras_transformer.data.tokenizers.errors import VocabularyTooLarge, nothing_to_learn, too_small
from keras_transformer.utils.errors import UserError

MARKER, ESCAPE = "▁", "\\"
UNKNOWN = f"{MARKER}⁇{MARKER}"  # text of UNK, as in SentencePiece
ALWAYS = [MARKER, ESCAPE, ";", *"0123456789"]  # pieces of every vocabulary
CACHED_WORDS = 1 << 18  # about 60 MB
CACHED_LENGTH = 100
WORDS, CHARACTERS = 200_000, 1000  # maximum numbers of distinct words and characters that the learner uses
LONGEST = 40  # maximum number of characters in a word that the learner uses
TOLERANCE = 0.02  # the search for a threshold stops if the vocabulary is larger than requested by at most this share


class WordPieceTokenizer(ListTokenizer):
    """Tokenizer that splits words by greedy longest match with a list of pieces.

    Args:
        pieces: Pieces, including `ALWAYS`, without the four special tokens. The piece at index n has the id n + 4.

    Raises:
        ValueError: Pieces are missing, repeated or empty.
    """

    file_name = "word_pieces.txt"

    def __init__(self, pieces):
        if missing := [piece for piece in ALWAYS if piece not in pieces]:
            raise ValueError(f"the piece {missing[0]!r} is missing")
        if len(set(pieces)) < len(pieces) or not all(pieces):
            raise ValueError("a piece is empty or repeated")
        super().__init__(pieces)
        self._longest = max(map(len, pieces))
        self.alphabet = {piece for piece in pieces if len(piece) == 1} - {MARKER, ESCAPE}
        self._runs = _runs(self.alphabet)
        self._cache = _Cache(self._encode_word)
        self._texts = [*[""] * UNK, UNKNOWN, *pieces]

    def __reduce__(self):
        return type(self), (self._pieces[len(SPECIAL) :],)

    @classmethod
    def train(cls, texts, vocab_size):
        """Learn pieces with TensorFlow Text.

        Args:
            texts: Iterable of sentences, both sides together for a joint vocabulary.
            vocab_size: Number of pieces, including the four special ones.

        Raises:
            UserError: The vocabulary is too large or too small for the texts, or TensorFlow Text is not installed.
        """
        learn = _learner()
        counts = count_words(texts)
        if not counts:
            raise nothing_to_learn()
        return cls(_fitting(learn, counts, vocab_size))

    def encode(self, texts):
        cache = self._cache
        return [[i for word in text.split() for i in cache[word]] for text in texts]

    def decode(self, ids):
        return [self._decode(row) for row in ids]

    @property
    def display_word_starts(self):
        starts = np.array([piece.startswith(MARKER) for piece in self._pieces], "float32")
        starts[[BOS, EOS]] = 1
        return starts

    def _decode(self, row):
        text = "".join([self._texts[i] for i in row]).replace(MARKER, " ")
        return re.sub(r"\\([0-9]{1,7});", _unescape, " ".join(text.split()))

    def _encode_word(self, word):
        """Return the ids of a word, which must not contain white space."""
        if not self.alphabet.issuperset(word):
            word = "".join(char if char in self.alphabet else f"{ESCAPE}{ord(char)};" for char in word)
        ids = []
        for run in self._runs.findall(MARKER + word):
            start = 0
            while start < len(run):
                end = min(len(run), start + self._longest)
                while (piece := self._ids.get(run[start:end])) is None:
                    end -= 1  # the loop ends, because each single character is a piece
                ids.append(piece)
                start = end
        return ids


class _Cache(dict):
    """Cache {word: ids} that encodes missing words. It does not store very long words, and clears itself when full."""

    def __init__(self, encode):
        super().__init__()
        self._encode = encode

    def __missing__(self, word):
        if len(self) >= CACHED_WORDS:
            self.clear()
        ids = tuple(self._encode(word))
        if len(word) <= CACHED_LENGTH:
            self[word] = ids
        return ids


def count_words(texts):
    """Split texts into runs of characters as `WordPieceTokenizer` does, and return {run: count}."""
    words, counts = collections.Counter(), collections.Counter()
    for text in texts:
        words.update(text.split())
    runs = _runs(set().union(*words))
    for word, count in words.items():
        if MARKER not in word and ESCAPE not in word:
            for run in runs.findall(MARKER + word):
                counts[run] += count
    return counts


def _runs(alphabet):
    """Return a pattern for an optional marker and a run of either the letters in `alphabet` or other characters."""
    letters = "".join(map(re.escape, sorted(filter(is_letter, {*alphabet, "0"}))))  # a regex class must not be empty
    return re.compile(f"{MARKER}?(?:[{letters}]+|[^{letters}{MARKER}]+)")


def is_letter(char):
    """Return whether a character is a letter, a digit or a combining mark such as an accent."""
    return unicodedata.category(char)[0] in "LNM"


def _unescape(match):
    """Return the character that an escape encodes, or the escape itself if no character has this escape."""
    code = int(match[1])
    real = code <= sys.maxunicode and not chr(code).isspace() and unicodedata.category(chr(code)) != "Cs"
    return chr(code) if real else match[0]


def _learner():
    """Return TensorFlow Text's function that learns a list of pieces from counts, a threshold and a number of rounds.

    Raises:
        UserError: TensorFlow Text is not installed.
    """
    from keras_transformer.backend.loading import hidden_stderr

    try:
        with hidden_stderr():
            from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner
    except ImportError as error:
        raise UserError(
            f"learning word pieces requires TensorFlow Text, but {error.name or error} is not installed; run "
            "pip install tensorflow-text (only needed for learning)"
        ) from None

    def learn(counts, threshold, rounds=4):
        return learner.learn(
            counts, vocab_size=sys.maxsize, reserved_tokens=ALWAYS, lower_thresh=threshold, upper_thresh=threshold,
            num_iterations=rounds, max_input_tokens=WORDS, max_token_length=LONGEST, max_unique_chars=CHARACTERS,
            include_joiner_token=False,
        )  # fmt: skip

    return learn


def _fitting(learn, counts, vocab_size):
    """Learn a vocabulary of `vocab_size` pieces, and return them without the special ones.

    The learner keeps pieces that occur at least `threshold` times. This function searches for the highest threshold
    that gives enough pieces, and drops the rarest pieces beyond the requested number.

    Args:
        learn: Function of counts and threshold that returns the list of pieces: characters first, then the others by
            decreasing count.
        counts: {run of characters: count}.
        vocab_size: Number of pieces, including the special ones.
    """
    wanted = vocab_size - len(SPECIAL)
    # At a threshold above all counts, only the characters remain.
    characters = learn(counts, 1 + sum(counts.values()) * LONGEST, rounds=1)
    if len(characters) > wanted:
        raise too_small(vocab_size, len(characters) + len(SPECIAL))
    enough, few, pieces, largest = 1, 1 + max(counts.values()), None, len(characters)
    while few - enough > 1 and (pieces is None or len(pieces) > wanted * (1 + TOLERANCE)):
        threshold = max(enough + 1, math.isqrt(enough * few))
        learned = learn(counts, threshold)
        largest = max(largest, len(learned))
        if len(learned) >= wanted:
            enough, pieces = threshold, learned
        else:
            few = threshold
    pieces = pieces or learn(counts, 1)
    if len(pieces) < wanted:
        raise VocabularyTooLarge(vocab_size, max(largest, len(pieces)) + len(SPECIAL))
    return pieces[:wanted]
