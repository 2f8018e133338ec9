"""Functions that learn SentencePiece vocabularies from texts or adapt existing model files."""

import collections
import io
import re
import sys
from dataclasses import dataclass, replace

from keras_transformer.data.placeholders import PLACEHOLDER
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, SPECIAL, UNK
from keras_transformer.data.tokenizers.errors import CHANGE, VocabularyTooLarge, nothing_to_learn, too_small
from keras_transformer.utils.errors import UserError

SAMPLE = 4_000_000
"""Maximum number of sentences to learn from. SentencePiece draws them at random from a larger text."""
LONGEST = 2**30
"""Maximum size of a training sentence in bytes. By default, SentencePiece ignores sentences above 4,192 bytes."""
LONG_WORD = re.compile(r"(\S{10000})")
"""Pattern that matches 10,000 characters of a word. Training texts get a space after each match, because SentencePiece
counts the characters of a word in 16 bits and aborts if the count overflows."""
MANY_CHARACTERS, COMMON_SHARE = 1000, 0.999
"""Thresholds of `has_many_characters`: a number of characters, and the share of a text that these characters cover."""
RARE_SHARE = 0.0005
"""Maximum share of characters without pieces in a text with many different characters."""


@dataclass(frozen=True)
class VocabularyOptions:
    """Options for learning a SentencePiece vocabulary.

    Attributes:
        kind: "bpe" for byte-pair encoding (§5.1), or "unigram" for a unigram language model.
        normalization: "identity", "nfkc" or "nfkc_cf". "identity" changes only white space. The others are
            SentencePiece's `nmt_nfkc` and `nmt_nfkc_cf`. Both replace compatibility characters such as "½", and
            "nfkc_cf" also folds case.
        character_coverage: Share of the text's characters that the vocabulary must cover. The rarest characters get no
            pieces. None means 1, or 0.9995 for a text with thousands of different characters.
        byte_fallback: Whether to encode characters without pieces as UTF-8 bytes instead of UNK. None means True if
            `character_coverage` is below 1.
        split_digits: Whether each digit is a separate piece.
        symbols: Texts that are always single pieces.
    """

    kind: str = "bpe"
    normalization: str = "identity"
    character_coverage: float | None = 1.0
    byte_fallback: bool | None = False
    split_digits: bool = False
    symbols: tuple[str, ...] = ()

    def automatic(self, texts):
        """Return a copy of the options in which each None is replaced with a value that suits the texts.

        Args:
            texts: Iterable of the training texts.
        """
        coverage, fallback = self.character_coverage, self.byte_fallback
        if coverage is None:
            coverage = 1 - RARE_SHARE if has_many_characters(texts) else 1.0
        return replace(self, character_coverage=coverage, byte_fallback=coverage < 1 if fallback is None else fallback)


def has_many_characters(texts):
    """Return whether texts contain many different characters, as in Chinese, Japanese or Korean.

    The result is True if the `MANY_CHARACTERS` most frequent characters cover less than `COMMON_SHARE` of the texts.
    """
    counts = collections.Counter()
    for text in texts:
        counts.update(text)
    for space in filter(str.isspace, [*counts]):
        del counts[space]
    common = sum(count for _, count in counts.most_common(MANY_CHARACTERS))
    return common < COMMON_SHARE * counts.total()


def learn_model(texts, vocab_size, options):
    """Learn a SentencePiece model, and return the bytes of its file.

    The file contains the normalization, so every program that reads the file normalizes texts in the same way. All
    normalizations replace runs of Unicode white space and of SentencePiece's marker "▁" with single spaces.

    Args:
        texts: Iterable of sentences, in both languages for a joint vocabulary.
        vocab_size: Number of pieces, including the four special ones.
        options: `VocabularyOptions` in which no value is None.

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
            sentence_iterator=sentences(), model_writer=model, model_type=options.kind, vocab_size=vocab_size,
            character_coverage=options.character_coverage, byte_fallback=options.byte_fallback,
            split_digits=options.split_digits, user_defined_symbols=list(options.symbols),
            pad_id=PAD, eos_id=EOS, bos_id=BOS, unk_id=UNK,
            input_sentence_size=SAMPLE, shuffle_input_sentence=True, max_sentence_length=LONGEST, minloglevel=2,
            **_normalizer(options.normalization),
        )  # fmt: skip
    except RuntimeError as error:
        if failed:  # `error` contains only the message of the original exception
            raise failed[0] from None
        raise _vocabulary_error(str(error), vocab_size) from None
    return model.getvalue()


def adapt_model(content, path):
    """Return a copy of a SentencePiece model in which the special pieces of this package have the ids 0 to 3.

    The other pieces keep their order and their scores, so the segmentation of texts does not change.

    Args:
        content: Bytes of a model file.
        path: Name of the file for messages.

    Raises:
        UserError: The content is not a SentencePiece model, an ordinary piece has the name of a special piece, or the
            package protobuf is not installed.
    """
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2 as protocol
    except ImportError:
        raise UserError("problem.vocab_file needs the package protobuf. Run pip install protobuf.") from None
    try:
        model = protocol.ModelProto.FromString(content)
    except DecodeError:
        raise _not_a_model(path) from None
    kinds = protocol.ModelProto.SentencePiece
    if sum(piece.type == kinds.UNKNOWN for piece in model.pieces) != 1:
        raise _not_a_model(path)
    others = [piece for piece in model.pieces if piece.type not in (kinds.UNKNOWN, kinds.CONTROL)]
    if repeated := {piece.piece for piece in others} & {*SPECIAL}:
        raise UserError(f"{path}: {min(repeated)} must be a special piece, got an ordinary one. Use another model.")
    special = [
        kinds(piece=name, score=0.0, type=kinds.UNKNOWN if index == UNK else kinds.CONTROL)
        for index, name in enumerate(SPECIAL)
    ]
    del model.pieces[:]
    model.pieces.extend([*special, *others])
    trainer = model.trainer_spec
    trainer.pad_id, trainer.eos_id, trainer.bos_id, trainer.unk_id = PAD, EOS, BOS, UNK
    trainer.pad_piece, trainer.eos_piece, trainer.bos_piece, trainer.unk_piece = SPECIAL
    trainer.vocab_size = len(model.pieces)
    return model.SerializeToString(deterministic=True)


def parse_symbols(text):
    """Return the symbols of a list such as `<br>,<tab>`, separated by commas or spaces.

    Raises:
        UserError: A symbol is one of the special pieces or a placeholder.
    """
    symbols = tuple(dict.fromkeys(filter(None, re.split(r"[,\s▁]+", text or ""))))
    if clash := [symbol for symbol in symbols if symbol in SPECIAL]:
        raise UserError(f"problem.user_symbols must not contain the special piece {clash[0]}. Remove it from the list.")
    if clash := [symbol for symbol in symbols if PLACEHOLDER.fullmatch(symbol)]:
        raise UserError(
            f"problem.user_symbols must not contain the placeholder {clash[0]}. Set problem.placeholders=true instead."
        )
    return symbols


def _normalizer(normalization):
    """Convert `VocabularyOptions.normalization` to keyword arguments of SentencePiece's trainer."""
    import sentencepiece

    if normalization != "identity":
        return {"normalization_rule_name": f"nmt_{normalization}"}
    sentencepiece.set_min_log_level(2)  # otherwise, the normalizer logs its size to stderr
    spaces = [char for char in map(chr, range(sys.maxunicode + 1)) if char.isspace() and char != " "]
    return {
        "normalizer": sentencepiece.SentencePieceNormalizer(
            norm_map=[(char, " ") for char in (*spaces, "▁")],
            add_dummy_prefix=True, escape_whitespaces=True, remove_extra_whitespaces=True,
        )
    }  # fmt: skip


def _vocabulary_error(message, vocab_size):
    """Convert an error message from SentencePiece's trainer to a `UserError`."""
    if largest := re.search(r"value <= (\d+)", message):
        return VocabularyTooLarge(vocab_size, largest[1])
    if smallest := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return too_small(vocab_size, smallest[1])
    if "sentences_.empty()" in message:
        return nothing_to_learn()
    return UserError(f"cannot learn a vocabulary of {vocab_size} pieces: {message.strip()}; {CHANGE}")


def _not_a_model(path):
    return UserError(f"{path} is not a SentencePiece model. Train one with spm_train, for example.")
