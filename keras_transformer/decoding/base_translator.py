"""Base class of translators, which converts between texts, token ids and hypotheses."""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from keras_transformer.config.hparams import HParams
from keras_transformer.data.language_tags import tag_texts
from keras_transformer.data.placeholders import hide_in_target, hide_spans, show_spans
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, UNK
from keras_transformer.decoding.search_options import Sampling, SearchOptions
from keras_transformer.decoding.sentences import join_hypotheses, split_texts
from keras_transformer.utils.errors import TextError, UserError, errors_of

MAX_PHRASE_TOKENS = 100
"""Maximum total number of tokens in the phrases of a text, which bounds the memory of a search."""


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One translation.

    Attributes:
        text: The translation.
        tokens: Token ids of the translation, including EOS.
        log_probability: log p(tokens | source), in nats.
        score: log_probability / ((5 + len(tokens)) / 6)^α.
        token_log_probabilities: Log-probability of each token given the tokens before it, float32 `[tokens]`, or None
            if not requested or if the text is blank.
        alignment: Attention from each token to each source token in the last decoder layer, averaged over its heads,
            float32 `[tokens, source_tokens]`. Both sides include EOS. None if not requested or if the text is blank.
    """

    text: str
    tokens: tuple
    log_probability: float
    score: float
    token_log_probabilities: np.ndarray | None = dataclasses.field(default=None, compare=False)
    alignment: np.ndarray | None = dataclasses.field(default=None, compare=False)


class BaseTranslator(abc.ABC):
    """Base class of translators. Each subclass implements search and scoring with one engine.

    Args:
        tokenizer: `Tokenizer` of the model.
        hparams: `HParams` with the default `beam_size`, `alpha` and `extra_length`.

    Attributes:
        engine: Name of the engine.
        supports_phrases: Whether `_search` uses `phrases`.
    """

    engine: str
    supports_phrases = True

    def __init__(self, tokenizer: Any, hparams: HParams):
        self.tokenizer, self.hparams = tokenizer, hparams
        self.constraint = tokenizer.constraint

    @abc.abstractmethod
    def _search(
        self, rows: list, texts: Sequence, sources: list, prefixes: Sequence, phrases: Sequence, options: SearchOptions
    ) -> Iterator[dict]:
        """Translate the texts in batches. Yield {row: hypotheses, best first} for each batch.

        Args:
            rows: Indices of the texts to translate.
            texts: All texts.
            sources: Token ids of all texts, including EOS.
            prefixes: Token ids with which each translation must begin.
            phrases: For each text, the token ids of the phrases that its translation must contain.
            options: `SearchOptions` with all defaults filled in.
        """

    @abc.abstractmethod
    def _scored(self, sources: list, targets: list, alignments: bool = False) -> Iterator[tuple]:
        """Score targets with teacher forcing.

        Yields:
            (row, log-probabilities `[tokens]`, alignment `[tokens, source_tokens]` or None).
        """

    def compile_ahead(self, **options: Any) -> None:  # noqa: B027  optional
        """Compile the search for a single sentence, if the engine compiles searches.

        Without this call, the compilation delays the first translation of a single sentence.

        Args:
            options: `SearchOptions` of later calls to `translate`.
        """

    def _check_supported(  # noqa: B027  optional
        self, options: SearchOptions, alignments: bool, phrases: Sequence | None
    ) -> None:
        """Raise a `UserError` if the engine does not support the options."""

    @overload
    def translate(self, texts: str, *args: Any, **options: Any) -> str: ...  # type: ignore[overload-overlap]

    @overload
    def translate(self, texts: Iterable[str], *args: Any, **options: Any) -> list[list[Hypothesis]]: ...

    def translate(
        self, texts: str | Iterable[str], beam_size: int | None = None, alpha: float | None = None, nbest: int = 1,
        extra_length: int | None = None, *, min_length: int = 0, max_source_length: int | None = None,
        no_repeat_ngram: int = 0, repetition_penalty: float = 1.0, prefixes: Sequence | None = None,
        phrases: Sequence | None = None, sampling: Sampling | None = None, constraint: Any = "grammar",
        token_scores: bool = False, alignments: bool = False, split_sentences: str | None = None, to: str | None = None,
        report: Callable[[int, int], Any] | None = None, cut: Callable[[int, int], Any] | None = None,
    ) -> str | list[list[Hypothesis]]:  # fmt: skip
        """Return the translation of one text, or lists of hypotheses for several texts.

        The result for a text does not depend on the other texts. The translation of an empty text is empty. If the
        vocabulary has placeholders, they protect addresses and marked spans (see `data.placeholders`). The `tokens` of
        a hypothesis then contain placeholders, and its `text` contains the spans.

        Args:
            texts: A source sentence, or a list of source sentences.
            beam_size: Number of beams per sentence; 1 for greedy search (default: the larger of `nbest` and the
                value of the hparams).
            alpha: Exponent of the length penalty (default: the value of the hparams).
            nbest: Number of hypotheses per sentence, at most `beam_size`.
            extra_length: Maximum number of tokens beyond the source length (default: the value of the hparams).
            min_length: Minimum number of tokens in a translation. The limit set by `extra_length` takes precedence.
            max_source_length: Maximum number of tokens in a source, including EOS (default: no limit). A translator
                truncates longer sources. A parser skips the search for them and returns a flat tree.
            no_repeat_ngram: Size in tokens of n-grams that a translation may contain only once; 0 for no limit.
            repetition_penalty: Factor, at least 1, by which to multiply the log-probability of tokens that a hypothesis
                already contains; 1 for no penalty. It changes the order of the hypotheses, not their reported scores.
            prefixes: For each text, the required beginning of its translation, as a text or as token ids, or None.
            phrases: For each text, a list of phrases that its translation must contain, or None. A phrase is a text
                or token ids; see `decoding.phrases`.
            sampling: `Sampling` to draw `beam_size` translations and return the best `nbest` of them.
            constraint: Constraint on the next token (see `SearchOptions`). "grammar" applies the tokenizer's grammar,
                if it has one, so that all trees are complete. None allows all tokens.
            token_scores: Whether hypotheses include `token_log_probabilities`.
            alignments: Whether hypotheses include `alignment`.
            split_sentences: Code of the source language, such as "en", to translate each sentence of a text separately
                and join the translations (see `decoding.sentences`). None translates each text as a whole.
            to: Code of the target language for texts that do not begin with a tag such as "<2de>". It is required for a
                model with several target languages.
            report: Function to call with (number of finished sentences, total number) after each batch.
            cut: Function to call with (index of the text, number of tokens) for each source that is too long.

        Returns:
            For a str, its translation as a str. For a list, a list of `Hypothesis` for each text, best first, with
            fewer than `nbest` entries if the search finds fewer. If a parser does not parse a sentence, its hypothesis
            has a flat tree as `text`, no `tokens`, and a `score` of −∞.

        Raises:
            UserError: An argument is out of range or needs a list of texts, or the target language of a text is missing
                or unknown. The error also occurs if `split_sentences` is combined with options that do not apply to
                joined translations, or if the options do not allow any translation of a text.
            TextError: A text has too many marked spans, its phrases are too long, or its prefix or phrases contain
                unknown tokens.
            NonFiniteOutputs: The model's outputs for a text are not finite.
        """
        options = SearchOptions(
            beam_size, alpha, nbest, extra_length, min_length, max_source_length, no_repeat_ngram, repetition_penalty,
            sampling, constraint,
        ).complete(self.hparams, self.constraint)  # fmt: skip
        self._check_supported(options, alignments, phrases)
        if phrases is not None and (sampling or self.constraint):
            raise UserError("phrases cannot be combined with sampling or a parser")
        if isinstance(texts, str):
            if nbest != 1 or token_scores or alignments:
                raise UserError("nbest, token_scores and alignments need a list of texts: translate([text], …)")
            sentences, one_text = [texts], True
        else:
            sentences, one_text = list(texts), False
        sentences = tag_texts(sentences, to, self.tokenizer.tags)
        owners = list(range(len(sentences)))  # index of the text to which each sentence belongs
        if split_sentences is not None:
            wrong = (nbest != 1, prefixes is not None, phrases is not None, token_scores, alignments, self.constraint)
            if any(wrong):
                raise UserError(
                    "split_sentences cannot be combined with nbest, prefixes, phrases, token_scores, alignments or a "
                    "parser"
                )
            sentences, owners = split_texts(
                sentences, split_sentences, bool(self.tokenizer.placeholders), self.tokenizer.source_prefix
            )
        with errors_of(owners):
            sentences, spans = self.hide_spans(sentences)
        sources = self._source_ids(sentences, max_source_length, cut and (lambda i, tokens: cut(owners[i], tokens)))
        prefixes = self._prefix_ids(prefixes, spans)
        phrases = self._phrase_ids(phrases, spans)
        by_row = {i: [self._unparsed(sentences[i])] for i, ids in enumerate(sources) if len(ids) == 1}
        rows = [i for i in range(len(sentences)) if i not in by_row]
        with errors_of(owners):
            for found in self._search(rows, sentences, sources, prefixes, phrases, options):
                by_row |= found
                if report:
                    report(len(by_row), len(sentences))
            # The phrases of several placeholders share the piece "▁", which no_repeat_ngram=1 allows only once. A
            # constraint may forbid placeholders.
            if self.supports_phrases and not (sampling or options.constraint or options.no_repeat_ngram == 1):
                if forced := self._missing_placeholders(sources, by_row, phrases):
                    for found in self._search([*forced], sentences, sources, prefixes, forced, options):
                        by_row |= found
            results = [by_row[i] for i in range(len(sentences))]
            if token_scores or alignments or repetition_penalty != 1:
                results = self._explained(sources, results, options, token_scores, alignments)
        results = [self._show_spans(*values) for values in zip(results, sources, spans)]
        if split_sentences is not None:
            results = [[joined] for joined in join_hypotheses([best for (best,) in results], owners)]
        return results[0][0].text if one_text else results

    def score(
        self, sources: Iterable[str], targets: Iterable, alpha: float | None = None, to: str | None = None
    ) -> list[Hypothesis]:
        """Return a `Hypothesis` for each pair, with the log-probability and the score of the target.

        The method uses teacher forcing.

        Args:
            sources: Source sentences.
            targets: Target sentences, or their token ids with or without EOS.
            alpha: Exponent of the length penalty (default: the value of the hparams).
            to: See `translate`.

        Raises:
            UserError: The numbers of sources and targets differ, a target contains an invalid token id, or the target
                language of a source is missing or unknown.
            NonFiniteOutputs: The model's outputs for a pair are not finite.
        """
        alpha = self.hparams.alpha if alpha is None else alpha
        sources, targets = list(sources), list(targets)
        if len(sources) != len(targets):
            raise UserError(f"sources and targets must have the same length, got {len(sources)} and {len(targets)}")
        texts, spans = self.hide_spans(tag_texts(sources, to, self.tokenizer.tags))
        source_ids = [ids + [EOS] for ids in self.tokenizer.encode(texts)]
        target_ids = [self._target_ids(*pair) for pair in zip(targets, spans)]
        results: list = [None] * len(source_ids)
        for i, log_p, _ in self._scored(source_ids, target_ids):
            ids, total = target_ids[i], float(log_p.sum())
            text = targets[i] if isinstance(targets[i], str) else self._decode(texts[i], ids, spans[i])
            results[i] = Hypothesis(text, tuple(ids), total, score_of(total, len(ids), alpha), log_p)
        return results

    def hide_spans(self, texts: list) -> tuple[list, list]:
        """Replace protected spans of sources with placeholders, if the vocabulary has them (see `data.placeholders`).

        Returns:
            The list of texts, and a list with {placeholder: span} of each text.

        Raises:
            TextError: A text has more marked spans than there are placeholders.
        """
        return hide_spans(texts, len(self.tokenizer.placeholders))

    def _source_ids(self, texts, most, cut):
        """Return the token ids of the sources, including EOS, truncated to `most` ids.

        For a parser, a source with more than `most` ids becomes EOS alone, so that the search skips the sentence.
        """
        sources = [[*ids, EOS] for ids in self.tokenizer.encode(texts)]
        for number, source in enumerate(sources):
            if most is not None and len(source) > most:
                if cut:
                    cut(number, len(source))
                source[0 if self.tokenizer.constraint else most - 1 :] = [EOS]
        return sources

    def _prefix_ids(self, prefixes, spans):
        """Validate the prefixes of translations and return their token ids.

        `spans` is a list with {placeholder: span} of each source.
        """
        count = len(spans)
        if prefixes is None:
            return [[]] * count
        prefixes = None if isinstance(prefixes, str) else ["" if prefix is None else prefix for prefix in prefixes]
        if prefixes is None or len(prefixes) != count:
            raise UserError(f"prefixes must be a list of length {count}, with one prefix or None for each text")
        prefixes = [hide_in_target(p, hidden) if isinstance(p, str) else p for p, hidden in zip(prefixes, spans)]
        ids = [self.tokenizer.encode_prefixes([p])[0] if isinstance(p, str) else [int(i) for i in p] for p in prefixes]
        for number, (prefix, tokens) in enumerate(zip(prefixes, ids)):
            self._check_ids("prefix", tokens)
            _check_known(number, "the prefix", "prefix", prefix, tokens)
        return ids

    def _phrase_ids(self, phrases, spans):
        """Return the token ids of the phrases that each translation must contain, without duplicates.

        `spans` is a list of one dictionary {placeholder: span} per source.
        """
        count = len(spans)
        if phrases is None:
            return [[]] * count
        listed = not isinstance(phrases, str) and [[] if several is None else several for several in phrases]
        if not listed or len(listed) != count or any(isinstance(several, str) for several in listed):
            raise UserError(f"phrases must be a list of length {count}, with one list of phrases for each text")
        return [self._ids_of_phrases(number, *values) for number, values in enumerate(zip(listed, spans))]

    def _ids_of_phrases(self, number, phrases, spans):
        """Return the token ids of the phrases for the text with index `number`. `spans` is {placeholder: span}."""
        found = []
        for phrase in phrases:
            if isinstance(phrase, str):
                phrase = hide_in_target(phrase, spans)
            ids = self.tokenizer.encode_targets([phrase])[0] if isinstance(phrase, str) else [int(i) for i in phrase]
            self._check_ids("phrase", ids)
            _check_known(number, "phrases", "phrase", phrase, ids)
            if ids and ids not in found:
                found.append(ids)
        if (count := sum(map(len, found))) > MAX_PHRASE_TOKENS:
            raise TextError(
                number,
                f"phrases for {{}} must have at most {MAX_PHRASE_TOKENS} tokens, got {count:,}. "
                "Use fewer or shorter phrases.",
            )
        return found

    def _check_ids(self, what, ids):
        if not all(0 <= i < self.tokenizer.vocab_size and i not in (PAD, BOS, EOS) for i in ids):
            raise UserError(
                f"{what} ids must be less than the vocabulary size ({self.tokenizer.vocab_size}) and must not include "
                f"PAD, BOS or EOS, got {ids}"
            )

    def _missing_placeholders(self, sources, results, phrases):
        """Return {row: phrases} for a second search of the rows in which a hypothesis lacks a placeholder.

        The phrases include the placeholders of the source. `results` is {row: hypotheses}.
        """
        forced, known = {}, {*self.tokenizer.placeholders}
        for row, source in enumerate(sources):
            needed = known.intersection(source)
            if any(needed.difference(hypothesis.tokens) for hypothesis in results[row]):
                # Keep a space token before the placeholder. Otherwise, the span would be attached to the previous word.
                pairs = [list(pair) for pair in itertools.pairwise(source) if pair[1] in needed]
                spaced = [pair if self.tokenizer.pieces(pair[:1]) == ["▁"] else pair[1:] for pair in pairs]
                forced[row] = phrases[row] + [phrase for phrase in spaced if phrase not in phrases[row]]
        return forced

    def _show_spans(self, hypotheses, source, spans):
        """Return the hypotheses with spans instead of placeholders. `source` contains the token ids of the source."""
        if not self.tokenizer.placeholders:
            return hypotheses
        ids = self.tokenizer.placeholders
        # Ignore placeholders that truncation has removed from the source.
        read = {name: span for (name, span), i in zip(spans.items(), ids) if i in source}
        return [dataclasses.replace(one, text=show_spans(one.text, read)) for one in hypotheses]

    def _decode(self, source, ids, spans):
        (text,) = self.tokenizer.decode_outputs([source], [ids])
        return show_spans(text, spans) if self.tokenizer.placeholders else text

    def _target_ids(self, target, spans):
        if isinstance(target, str):
            (ids,) = self.tokenizer.encode_targets([hide_in_target(target, spans)])
        else:
            ids = [int(i) for i in target]
            ids = ids[:-1] if ids[-1:] == [EOS] else ids
            self._check_ids("target", ids)
        return [*ids, EOS]

    def _unparsed(self, source):
        """Return the result for a text that the search skips: "" for a blank text, or a flat tree from a parser."""
        (text,) = self.tokenizer.decode_outputs([source], [[]])
        score = float("-inf") if text else 0.0
        return Hypothesis(text, (), score, score)

    def _explained(self, sources, results, options, token_scores, alignments):
        """Run a teacher-forced pass to add the tokens' log-probabilities and alignments to the hypotheses.

        After a search with a repetition penalty, also replace the scores with scores without the penalty.
        """
        owners = [(i, n) for i, found in enumerate(results) for n, hypothesis in enumerate(found) if hypothesis.tokens]
        targets = [list(results[i][n].tokens) for i, n in owners]
        results = [list(found) for found in results]
        with errors_of([i for i, _ in owners]):
            for k, log_p, weights in self._scored([sources[i] for i, _ in owners], targets, alignments):
                i, n = owners[k]
                values = {"token_log_probabilities": log_p} if token_scores else {}
                if options.repetition_penalty != 1:
                    total = float(log_p.sum())
                    values |= {"log_probability": total, "score": score_of(total, len(log_p), options.alpha)}
                results[i][n] = dataclasses.replace(results[i][n], alignment=weights, **values)
        return results


def score_of(log_probability: float, length: int, alpha: float) -> float:
    """Return the score of a hypothesis (§6.1). `length` is its number of tokens, including EOS."""
    return log_probability / ((5.0 + length) / 6.0) ** alpha


def _check_known(number, subject, name, text, ids):
    """Raise a `TextError` for the text with index `number` if the ids of a string contain an unknown token."""
    if isinstance(text, str) and UNK in ids:
        raise TextError(
            number,
            f"{subject} for {{}} must consist of tokens in the vocabulary, got {text!r}. Change or remove this {name}.",
        )
