"""Base classes of translation problems, which have pairs of sentences, a vocabulary and BLEU scores."""

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from keras_transformer.config.hparams import setting
from keras_transformer.data.corpus import read_pairs
from keras_transformer.data.corpus_files import existing_files
from keras_transformer.data.filters import PairFilter, script_classes
from keras_transformer.data.language_tags import needs_tags
from keras_transformer.data.placeholder_insertion import SHARE
from keras_transformer.data.placeholders import COUNT, placeholder, placeholder_names
from keras_transformer.data.sampling import drain, sample_texts
from keras_transformer.data.tokenizers.base import Tokenizer, no_byte_pairs
from keras_transformer.data.tokenizers.marian import MarianTokenizer
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.vocabulary import VocabularyOptions, adapt_model, parse_symbols
from keras_transformer.metrics.bleu import (
    TOKENIZERS,
    chrf,
    lowercase_bleu,
    sacre_bleu,
    sacrebleu_metric,
    tokenized_bleu,
    tokenizer_for,
)
from keras_transformer.tasks.problem import Problem
from keras_transformer.utils.errors import UserError

logger = logging.getLogger(__name__)

NORMALIZATION = "Unicode normalization of texts (identity changes only white space)"
OVERLAPS = ("pairs", "sources")
LEARNING = (
    "vocab_size", "normalization", "vocab_type", "character_coverage", "byte_fallback", "split_digits", "user_symbols",
    "joint_vocabulary",
)  # fmt: skip
"""Settings that affect how a vocabulary is learned."""


@dataclasses.dataclass(kw_only=True)
class TranslationProblem(Problem):
    """Translation of sentences between two languages, with a joint vocabulary or one vocabulary per side.

    Attributes:
        source: Code of the corpus' source language, which is the output language of a reversed problem.
        target: Code of the corpus' target language, which is the input language of a reversed problem.
        tokenized: Whether the corpus is already tokenized. If so, BLEU on its tokens is the main score, as in papers.
    """

    source: ClassVar[str]
    target: ClassVar[str]
    tokenized: ClassVar[bool] = False
    overlap_hint = ", or set problem.drop_overlap=pairs"

    vocab_size: int = setting(8000, "number of pieces in the joint vocabulary", low=8)
    normalization: str = setting("identity", NORMALIZATION, choices=("identity", "nfkc", "nfkc_cf"))
    joint_vocabulary: bool = setting(
        True, "whether both sides share one vocabulary (false: vocab_size pieces for each side)"
    )
    vocab_type: str = setting("bpe", "algorithm that learns the vocabulary", choices=("bpe", "unigram"))
    character_coverage: float | None = setting(
        None, "share of the text that the characters in the vocabulary cover (none: automatic)", low=0.98, high=1
    )
    byte_fallback: bool | None = setting(
        None, "whether to encode characters outside the vocabulary as UTF-8 bytes, not as <unk> (none: automatic)"
    )
    split_digits: bool = setting(False, "whether each digit is a separate piece")
    user_symbols: str | None = setting(None, "texts that are always single pieces, separated by commas")
    placeholders: bool = setting(
        False, "whether to train placeholders, which protect addresses and marked spans in translations"
    )
    vocab_file: str | None = setting(
        None, "existing SentencePiece model or marian_tokenizer.json, instead of a learned vocabulary", is_path=True
    )

    min_tokens: int | None = setting(None, "minimum number of tokens, with EOS, on each side of a training pair", low=1)
    max_tokens: int | None = setting(None, "maximum number of tokens, with EOS, on each side of a training pair", low=1)
    max_length_ratio: float | None = setting(
        None, "maximum ratio of the longer side of a training pair to the shorter, in tokens with EOS", low=1
    )
    drop_duplicates: bool = setting(False, "whether to keep only the first of identical training pairs")
    drop_source_duplicates: bool = setting(False, "whether to keep only the first training pair of each source")
    drop_overlap: str | None = setting(
        None, "training pairs to drop: pairs or sources that are also in another split", choices=OVERLAPS
    )
    drop_copies: bool = setting(False, "whether to drop training pairs whose sides are equal")
    drop_control: bool = setting(False, "whether to drop training pairs with control or replacement characters")
    min_letters: float | None = setting(
        None, "minimum share of letters among the characters on each side of a training pair", low=0.01, high=1
    )
    source_script: str | None = setting(None, "Unicode script of training sources, such as Latin or Han,Hiragana")
    target_script: str | None = setting(None, "Unicode script of training targets")

    bpe_dropout: float = setting(
        0.0, "probability of skipping a merge when segmenting training texts (BPE-dropout)", low=0, high=0.9
    )
    num_segmentations: int = setting(
        1, "number of stored segmentations of each training pair, with bpe_dropout", low=1, high=1000
    )

    extra_train: str | None = setting(
        None, "prefix of two files, PREFIX.SRC and PREFIX.TGT, with additional training pairs", is_path=True
    )

    bleu_tokenizer: str | None = setting(
        None, "sacreBLEU tokenizer (none: chosen for the target language)", choices=TOKENIZERS, of_corpus=False
    )

    def __post_init__(self):
        super().__post_init__()
        if self.vocab_file and (changed := self.changed(LEARNING)):
            raise UserError(
                f"{self.name}: vocab_file cannot be combined with {changed[0]}, because vocab_file replaces a "
                "learned vocabulary; unset one of them"
            )
        if self.bpe_dropout and not self.joint_vocabulary:
            raise UserError(
                f"{self.name}: bpe_dropout cannot be combined with joint_vocabulary=false; unset one of them"
            )
        if self.bpe_dropout and (self.vocab_type != "bpe" or self.byte_fallback):
            raise no_byte_pairs("vocab_type=unigram" if self.vocab_type != "bpe" else "byte_fallback=true")
        if self.num_segmentations > 1 and not self.bpe_dropout:
            raise UserError(
                f"{self.name}: num_segmentations={self.num_segmentations} requires BPE-dropout; add "
                "--set problem.bpe_dropout=0.1"
            )
        if self.bpe_dropout and self.num_segmentations == 1:
            raise UserError(
                f"{self.name}: bpe_dropout={self.bpe_dropout} requires several segmentations, because a "
                "single segmentation would be the same in every epoch; add --set problem.num_segmentations=10"
            )
        if self.num_segmentations > 1 and (dropping := self.dropped_duplicates):
            raise UserError(
                f"{self.name}: num_segmentations={self.num_segmentations} cannot be combined with {dropping}, "
                "which would keep only one segmentation; unset one of them"
            )
        for scripts in filter(None, (self.source_script, self.target_script)):
            script_classes(scripts)

    @property
    def dropped_duplicates(self) -> str | None:
        """Name of the enabled setting that drops duplicates, or None."""
        return next((name for name in ("drop_duplicates", "drop_source_duplicates") if getattr(self, name)), None)

    @property
    def filters(self) -> dict:
        names = [field.name for field in dataclasses.fields(PairFilter)]
        values: dict[str, Any] = {name: getattr(self, name, None) for name in names}
        return {"train": PairFilter(**{**values, "drop_empty": True})}

    @property
    def noise(self) -> dict:
        from keras_transformer.data.encoding import NO_NOISE, Noise  # imports multiprocessing and unittest.mock

        train, others = Noise(self.bpe_dropout), NO_NOISE
        if self.placeholders:
            train, others = train._replace(placeholders=SHARE), Noise(placeholders=0.0)
        return {**dict.fromkeys(self.splits, others), "train": train}

    def changed(self, names) -> list:
        """Return the names of the settings in `names` that differ from their defaults."""
        fields = {field.name: field.default for field in dataclasses.fields(self)}
        return [name for name in names if getattr(self, name) != fields[name]]

    def further_files(self) -> list:
        if self.vocab_file and not Path(self.vocab_file).is_file():
            raise UserError(f"{self.name}: problem.vocab_file must be a file, got {self.vocab_file}")
        return self._extra_files() + [self.vocab_file] * bool(self.vocab_file)

    def _extra_files(self):
        """Return the source file and the target file of `extra_train`, or an empty list."""
        if self.extra_train is None:
            return []
        prefix = Path(self.extra_train)
        names = [f"{prefix.name}.{language}" for language in (self.source, self.target)]
        otherwise = f"; problem.extra_train must be the common prefix of two files, {names[0]} and {names[1]}"
        return existing_files(prefix.parent, names, otherwise)

    def further_pairs(self) -> Iterable[tuple[str, str]]:
        return read_pairs(*self._extra_files()) if self.extra_train else ()

    def stored_pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yield the pairs to encode for a split. With BPE-dropout, yield training pairs `num_segmentations` times."""
        for _ in range(self.num_segmentations if split == "train" else 1):
            yield from super().stored_pairs(split)

    @classmethod
    def reverse_class(cls, name):
        """Return the class of the problem in the opposite direction, which shares the prepared corpus."""
        return type(
            f"{cls.__name__}Reversed",
            (cls,),
            {"name": name, "reversed": True, "__doc__": cls.__doc__, "__module__": cls.__module__},
        )

    def make_tokenizer(self) -> Tokenizer:
        """Return the tokenizer of `vocab_file`, or learn one from the training texts.

        If the corpus is large, learning uses a sample of the texts (see `sample_texts`).
        """
        if self._has_marian_vocabulary:
            tokenizer = self._read_marian_tokenizer()
            return self._check_vocabulary(tokenizer.reverse() if self.reversed else tokenizer)
        if self.vocab_file:
            model = adapt_model(Path(self.vocab_file).read_bytes(), self.vocab_file)
            return self._check_vocabulary(SentencePieceTokenizer(model))
        if self.joint_vocabulary:
            return self._learn_tokenizer((0, 1))
        return MarianTokenizer.join(self._learn_tokenizer((0,)), self._learn_tokenizer((1,)))

    @property
    def _has_marian_vocabulary(self):
        return bool(self.vocab_file) and Path(self.vocab_file).suffix == ".json"

    @property
    def identity(self) -> list:
        # A Marian vocabulary has one model for inputs and one for outputs. The reverse direction encodes each side of
        # the corpus with the other model, so the two directions cannot share a prepared corpus.
        return [*super().identity, *["reversed"] * (self.reversed and self._has_marian_vocabulary)]

    def _read_marian_tokenizer(self):
        try:
            return MarianTokenizer.from_bytes(Path(self.vocab_file).read_bytes())
        except (ValueError, RuntimeError):
            raise UserError(
                f"{self.vocab_file} is not a valid {MarianTokenizer.file_name}. Set problem.vocab_file to the "
                f"{MarianTokenizer.file_name} of a run, or to a SentencePiece model."
            ) from None

    def _check_vocabulary(self, tokenizer):
        """Return the tokenizer of `vocab_file`. Raise a `UserError` if it does not suit the problem."""
        if tokenizer.placeholders and not self.placeholders:
            raise UserError(
                f"problem.placeholders must be true for {self.vocab_file}, which contains the piece {placeholder(1)}. "
                "Add --set problem.placeholders=true."
            )
        if self.placeholders and not tokenizer.placeholders:
            raise UserError(
                f"problem.vocab_file must contain the pieces {placeholder(1)} to {placeholder(COUNT)} for "
                f"placeholders=true. Train it with spm_train --user_defined_symbols={','.join(placeholder_names())}."
            )
        self._check_tags(tokenizer)
        return tokenizer

    def _check_tags(self, tokenizer):
        """Raise a `UserError` if the tokenizer has language tags, but the first training source has none of them."""
        if not needs_tags(tokenizer.tags):
            return
        # Blank sources have no tag.
        source = next((source for source, _ in self.examples("train") if source.strip()), "")
        if not tokenizer.source_prefix(source):
            tag = next(iter(tokenizer.tags.values()))
            raise UserError(
                f"{self.name}: training sources must begin with a tag of {self.vocab_file}, such as {tag}, got "
                f"{source[:40]!r}. Use multilingual_text with problem.directions, which adds the tags."
            )

    def _learn_tokenizer(self, sides):
        # SentencePiece's own sampling is not reproducible, and it limits the number of sentences instead of their size.
        texts = sample_texts(self.training_texts(sides))
        options = self._vocabulary_options().automatic(texts)
        if options.character_coverage < 1 and self.character_coverage is None:
            logger.info(
                f"  the text has many different characters; using character_coverage={options.character_coverage}, "
                f"byte_fallback={str(options.byte_fallback).lower()}"
            )
        return SentencePieceTokenizer.train(drain(texts), self.vocab_size, options)

    def _vocabulary_options(self):
        coverage, fallback = self.character_coverage, self.byte_fallback
        if self.bpe_dropout:  # BPE-dropout does not support byte fallback
            coverage, fallback = 1.0 if coverage is None else coverage, False
        symbols = placeholder_names() * self.placeholders + parse_symbols(self.user_symbols)
        return VocabularyOptions(self.vocab_type, self.normalization, coverage, fallback, self.split_digits, symbols)

    def training_texts(self, sides=(0, 1)):
        """Yield the texts of the training pairs, except those of `further_pairs`.

        At the end, store the number of training pairs, including `further_pairs`, for the progress log.

        Args:
            sides: Sides to yield, 0 for the source and 1 for the target.
        """
        count = 0
        for pair in self.pairs("train"):
            yield from (pair[side] for side in sides)
            count += 1
        count += sum(1 for _ in self.further_pairs())
        self.expected_pairs = {"train": count * self.num_segmentations}

    @property
    def input_language(self) -> str:
        """Code of the language that a model of this problem reads."""
        return self._language("target" if self.reversed else "source")

    @property
    def output_language(self) -> str:
        """Code of the language that a model of this problem writes."""
        return self._language("source" if self.reversed else "target")

    def _language(self, side):
        if not hasattr(self, side):
            raise UserError(
                f'problem {self.name!r}: class {type(self).__name__} must define {side}, a language code such as "en"'
            )
        return getattr(self, side)

    @property
    def sacrebleu_tokenizer(self) -> str:
        """Name of the sacreBLEU tokenizer: `bleu_tokenizer` if set, else the tokenizer for the output language."""
        return self.bleu_tokenizer or tokenizer_for(self.output_language)

    def check_metric(self, metric: str) -> None:
        for problem in self.parts.values() if self.parts else [self]:
            sacrebleu_metric("sacreBLEU", problem.sacrebleu_tokenizer)

    def score(self, hypotheses: Sequence[str], references: Sequence[str]) -> list:
        scores = [sacre_bleu(hypotheses, references, self.sacrebleu_tokenizer)]
        if self.tokenized:
            scores.append(tokenized_bleu(hypotheses, references))
        return scores

    def all_scores(self, hypotheses: Sequence[str], references: Sequence[str]) -> list:
        more = [chrf(hypotheses, references), lowercase_bleu(hypotheses, references, self.sacrebleu_tokenizer)]
        return more + self.score(hypotheses, references)


class CorpusProblem(TranslationProblem):
    """Translation problem that reads its text from one corpus object, such as `PlainFiles` or `TfdsCorpus`."""

    @property
    def texts(self):
        """The corpus object. Its method `files()` returns the paths of its files, and `pairs(split)` yields pairs."""
        raise NotImplementedError

    def corpus_files(self) -> list:
        return self.texts.files()

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        return self.texts.pairs(split)
