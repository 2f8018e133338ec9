"""Word pieces (§5.1, en-fr): learned with TensorFlow Text's learner, applied in plain Python or inside a graph.

A text is normalised in one thing only: its words are what stands between white space (as `str.split()` sees it:
no-break spaces and line ends, too), and one space stands between two of them. That space is kept, as the marker "▁"
before the word, so that "dit : « non »" comes back as it was. A run of letters and digits and a run of other
characters are tokenised apart, "▁l|'|homme", each by the longest piece that it begins with, again and again.

Every text comes back as normalised, whatever its characters: one that is no piece, "▁" and the backslash are written
as "\\CODE;", with the decimal code point, whose characters always are pieces. Thus nothing is encoded as UNK.
"""

import collections
import math
import re
import sys
import unicodedata

import numpy as np

from keras_transformer.data.tokenizers.base import (
    BOS,
    EOS,
    SPECIAL,
    UNK,
    Tokenizer,
    VocabularyTooLarge,
    nothing_to_learn,
    read_list,
    too_small,
)
from keras_transformer.utils.errors import UserError

MARKER, ESCAPE = "▁", "\\"
UNKNOWN = f"{MARKER}⁇{MARKER}"  # as SentencePiece shows it; no text is encoded so
ALWAYS = [MARKER, ESCAPE, ";", *"0123456789"]  # what no text is tokenised without
CACHED_WORDS = 1 << 18  # about 60 MB
CACHED_LENGTH = 100
WORDS, CHARACTERS = 200_000, 1000  # the most different ones to learn from; what is rarer is left out
LONGEST = 40  # characters; longer words are not learned from
TOLERANCE = 0.02  # share of pieces learned beyond those asked for; the rarest are left out


class WordPieceTokenizer(Tokenizer):
    """Tokenizer of a given list of pieces, by greedy longest match.

    Args:
        pieces: The pieces without the four special ones, `ALWAYS` among them; the n-th has id n + 4.

    Raises:
        ValueError: Pieces are missing, repeated or empty.
    """

    file_name = "word_pieces.txt"

    def __init__(self, pieces):
        if missing := [piece for piece in ALWAYS if piece not in pieces]:
            raise ValueError(f"{missing[0]!r} is not among its pieces")
        if len(set(pieces)) < len(pieces) or not all(pieces):
            raise ValueError("a piece is empty or stands there twice")
        self._pieces = [*SPECIAL, *pieces]
        self.vocab_size = len(self._pieces)
        self._ids = {piece: i for i, piece in enumerate(self._pieces) if i >= len(SPECIAL)}
        self._longest = max(map(len, pieces))
        self.alphabet = {piece for piece in pieces if len(piece) == 1} - {MARKER, ESCAPE}
        self._runs = _runs(self.alphabet)
        self._cache = _Cache(self._encode_word)
        self._texts = [*[""] * UNK, UNKNOWN, *pieces]

    def __reduce__(self):
        return type(self), (self._pieces[len(SPECIAL) :],)

    @classmethod
    def train(cls, texts, vocab_size):
        """Learns pieces with the learner of TensorFlow Text.

        Args:
            texts: Iterable of sentences, both sides together for a joint vocabulary.
            vocab_size: Pieces, the four special ones included.

        Raises:
            UserError: The texts cannot fill so large a vocabulary, or do not fit in so small a one.
            UserError: TensorFlow Text is not installed.
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

    def pieces(self, ids):
        return [self._pieces[i] for i in ids]

    @property
    def display_word_starts(self):
        starts = np.array([piece.startswith(MARKER) for piece in self._pieces], "float32")
        starts[[BOS, EOS]] = 1
        return starts

    @classmethod
    def from_bytes(cls, content):
        return cls(read_list(content))

    def to_bytes(self):
        return "".join(f"{piece}\n" for piece in self._pieces[len(SPECIAL) :]).encode()

    def _decode(self, row):
        text = "".join([self._texts[i] for i in row]).replace(MARKER, " ")
        return re.sub(r"\\([0-9]{1,7});", _unescape, " ".join(text.split()))

    def _encode_word(self, word):
        """Returns the ids of what stands between two spaces."""
        if not self.alphabet.issuperset(word):
            word = "".join(char if char in self.alphabet else f"{ESCAPE}{ord(char)};" for char in word)
        ids = []
        for run in self._runs.findall(MARKER + word):
            start = 0
            while start < len(run):
                end = min(len(run), start + self._longest)
                while (piece := self._ids.get(run[start:end])) is None:
                    end -= 1  # ends at one character: they all are pieces
                ids.append(piece)
                start = end
        return ids


class _Cache(dict):
    """{word: ids}, filled on use, but for very long words; emptied when it is full."""

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
    """Returns {run of characters: count} of all texts, parted as `WordPieceTokenizer` does it."""
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
    """Returns the pattern of runs: of the alphabet's letters or of other characters, with a marker before."""
    letters = "".join(map(re.escape, sorted(filter(is_letter, {*alphabet, "0"}))))  # a class is never empty
    return re.compile(f"{MARKER}?(?:[{letters}]+|[^{letters}{MARKER}]+)")


def is_letter(char):
    """Whether it is a letter, a digit or a mark, such as an accent, on one."""
    return unicodedata.category(char)[0] in "LNM"


def _unescape(match):
    """The character that an escape stands for; the escape itself where a model made up one that no text holds."""
    code = int(match[1])
    real = code <= sys.maxunicode and not chr(code).isspace() and unicodedata.category(chr(code)) != "Cs"
    return chr(code) if real else match[0]


def _learner():
    """Returns the function of counts, threshold and number of rounds to a list of pieces.

    Raises:
        UserError: TensorFlow Text is not installed.
    """
    from keras_transformer.backend.loading import hidden_stderr

    try:
        with hidden_stderr():
            from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner
    except ImportError as error:
        raise UserError(
            f"word pieces are learned with TensorFlow Text, and {error.name or error} is not installed: "
            "pip install tensorflow-text (only learning them needs it)"
        ) from None

    def learn(counts, threshold, rounds=4):
        return learner.learn(
            counts, vocab_size=sys.maxsize, reserved_tokens=ALWAYS, lower_thresh=threshold, upper_thresh=threshold,
            num_iterations=rounds, max_input_tokens=WORDS, max_token_length=LONGEST, max_unique_chars=CHARACTERS,
            include_joiner_token=False,
        )  # fmt: skip

    return learn


def _fitting(learn, counts, vocab_size):
    """Returns the pieces of a vocabulary of `vocab_size`, the special ones aside.

    What the learner keeps is counted at least `threshold` times. The highest threshold is searched that gives as many
    pieces as are wanted; the last ones, which are the rarest, are left out.

    Args:
        learn: Function of counts and threshold to the list of pieces, the characters first, then by falling count.
        counts: {run of characters: count}.
        vocab_size: Pieces, the special ones included.
    """
    wanted = vocab_size - len(SPECIAL)
    characters = learn(counts, 1 + sum(counts.values()) * LONGEST, rounds=1)  # nothing else is counted so often
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
