"""A tokenizer of subwords with a SentencePiece model, by default byte-pair encoding (§5.1)."""

import functools
import io
import random
import re
import sys

from keras_transformer.data.tokenizers.base import (
    BOS,
    CHANGE,
    EOS,
    PAD,
    SPECIAL,
    UNK,
    Tokenizer,
    VocabularyTooLarge,
    flags,
    no_byte_pairs,
    nothing_to_learn,
    too_small,
)
from keras_transformer.utils.errors import UserError

LONGEST = 2**30
"""Maximum bytes of a training sentence. SentencePiece would ignore sentences of more than 4,192 bytes by default."""
LONG_WORD = re.compile(r"(\S{10000})")
"""Point at which long words are split for training. SentencePiece counts a word's characters in 16 bits and aborts
beyond that."""


class SentencePieceTokenizer(Tokenizer):
    """Tokenizer of subwords with a SentencePiece model.

    Args:
        model: Bytes of the model file.
    """

    file_name = "tokenizer.model"

    def __init__(self, model):
        import sentencepiece

        if not model:  # SentencePiece would take this as a missing argument
            raise RuntimeError("the model file is empty")
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocab_size = self._processor.get_piece_size()

    @classmethod
    def train(cls, texts, vocab_size, sample=4_000_000, symbols=(), normalization="identity"):
        """Learn byte-pair encoding (§5.1).

        The model file contains the normalization, so every program that reads the file normalizes in the same way. All
        normalizations replace runs of Unicode white space, and of SentencePiece's marker "▁", by single spaces.

        Args:
            texts: Iterable of sentences, both sides together for a joint vocabulary.
            vocab_size: Number of pieces, including the four special ones.
            sample: Maximum number of sentences to learn from, drawn at random.
            symbols: Texts that are always whole pieces.
            normalization: "identity" keeps every other character. "nfkc" and "nfkc_cf" are SentencePiece's `nmt_nfkc`
                and `nmt_nfkc_cf`: both replace compatibility characters such as "½", and the latter folds case.

        Raises:
            UserError: The vocabulary is too large or too small for the texts.
            Exception: Any exception from the iteration over `texts`.
        """
        import sentencepiece

        model, failed = io.BytesIO(), []

        def sentences():
            try:
                for text in filter(str.strip, texts):
                    yield LONG_WORD.sub(r"\1 ", text) if len(text) > 10_000 else text
            except BaseException as error:
                failed.append(error)
                raise

        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=sentences(), model_writer=model,
                model_type="bpe", vocab_size=vocab_size, character_coverage=1.0,
                pad_id=PAD, eos_id=EOS, bos_id=BOS, unk_id=UNK,
                input_sentence_size=sample, shuffle_input_sentence=True, max_sentence_length=LONGEST, minloglevel=2,
                user_defined_symbols=list(symbols), **_normalizer(normalization),
            )  # fmt: skip
        except RuntimeError as error:
            if failed:  # SentencePiece passes on only the message
                raise failed[0] from None
            raise _vocabulary_error(str(error), vocab_size) from None
        return cls(model.getvalue())

    def encode(self, texts):
        return self._processor.encode(list(texts))

    def resegment(self, ids, rate, seed):
        rng = random.Random(seed)
        return [self._dropout(row, rate, rng) for row in ids]

    @functools.cached_property
    def _dropout(self):
        from keras_transformer.data.tokenizers.bpe_dropout import BPEDropout

        numbers = range(self.vocab_size)
        scores = [self._processor.get_score(i) for i in numbers]
        if not all(map(float.is_integer, scores)):  # BPE scores are positions in the order of learning
            raise no_byte_pairs("this SentencePiece model")
        if any(map(self._processor.is_byte, numbers)):
            raise no_byte_pairs("a SentencePiece model with byte fallback")
        # Pieces that were not learned, such as `symbols`, have score 0. So has the piece learned first, after them.
        given = [i for i in numbers if not scores[i]][:-1]
        return BPEDropout(self.pieces(numbers), scores, self.word_starts, {*range(len(SPECIAL)), *given})

    def decode(self, ids):
        return self._processor.decode([[int(i) for i in row if i not in (PAD, BOS, EOS)] for row in ids])

    def pieces(self, ids):
        return [self._processor.id_to_piece(int(i)) for i in ids]

    @classmethod
    def from_bytes(cls, content):
        return cls(content)

    def to_bytes(self):
        return self._model

    @property
    def word_starts(self):
        pieces = self.pieces(range(self.vocab_size))
        return flags([i in (BOS, EOS) or piece[0] == "▁" for i, piece in enumerate(pieces)])

    @property
    def hidden_ids(self):
        """See `Tokenizer`. A piece that begins a word is replaced by "▁", as in an unknown word."""
        ids, blank = super().hidden_ids, self._processor.piece_to_id("▁")
        begins = self.word_starts == 1
        begins[[BOS, EOS]] = False
        ids[begins] = blank
        return ids


def _normalizer(normalization):
    """Return the arguments of SentencePiece's trainer for a normalization of `SentencePieceTokenizer.train`."""
    import sentencepiece

    if normalization != "identity":
        return {"normalization_rule_name": f"nmt_{normalization}"}
    sentencepiece.set_min_log_level(2)  # the normalizer would log its size to stderr
    spaces = [char for char in map(chr, range(sys.maxunicode + 1)) if char.isspace() and char != " "]
    return {
        "normalizer": sentencepiece.SentencePieceNormalizer(
            norm_map=[(char, " ") for char in (*spaces, "▁")],
            add_dummy_prefix=True, escape_whitespaces=True, remove_extra_whitespaces=True,
        )
    }  # fmt: skip


def _vocabulary_error(message, vocab_size):
    """Return the `UserError` for an error message of SentencePiece's trainer."""
    if largest := re.search(r"<= (\d+)", message):
        return VocabularyTooLarge(vocab_size, largest[1])
    if smallest := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return too_small(vocab_size, smallest[1])
    if "sentences_.empty()" in message:
        return nothing_to_learn()
    return UserError(f"cannot learn a vocabulary of {vocab_size} pieces: {message.strip()}; {CHANGE}")
