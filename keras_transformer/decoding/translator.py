"""Translator: text in, text out, with a trained model or several."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import numpy as np
from keras import ops

from keras_transformer.backend.compilation import compiled
from keras_transformer.config.hparams import HParams
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD
from keras_transformer.decoding.batched_search import BatchedBeamSearch
from keras_transformer.decoding.search_batches import by_length, padded, search_inputs
from keras_transformer.decoding.search_options import Sampling, SearchOptions
from keras_transformer.decoding.token_selection import NEG_INF
from keras_transformer.models.loss import smoothed_cross_entropy
from keras_transformer.utils.errors import NonFiniteOutputs, UserError
from keras_transformer.visualization.attention import AttentionMaps, Tokens


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One translation.

    Attributes:
        text: The translation.
        tokens: Its ids, EOS included.
        log_probability: log p(tokens | source), in nats.
        score: log_probability / ((5 + len(tokens)) / 6)^α.
        token_log_probabilities: log p of each token after those before it, float32 `[tokens]`; None if not asked for,
            or for a blank text.
        alignment: How much each token attends to each source token, the means over the heads of the last decoder
            layer, float32 `[tokens, source_tokens]`, EOS included on both sides; None if not asked for, or for a blank
            text.
    """

    text: str
    tokens: tuple
    log_probability: float
    score: float
    token_log_probabilities: np.ndarray | None = dataclasses.field(default=None, compare=False)
    alignment: np.ndarray | None = dataclasses.field(default=None, compare=False)


class Translator:
    """Translates with a model and the tokenizer that it was trained with.

    Args:
        model: `Transformer`, or a list of them over one vocabulary: an ensemble. The mean of its probabilities counts.
        problem: Problem whose tokenizer the model speaks, or a `Tokenizer`.
        hparams: Its `beam_size`, `alpha` and `extra_length` are the defaults of the search (default: the model's).
        jit_compile: Whether TensorFlow translates with XLA: faster, once it has compiled each of a few shapes of
            batches. That takes seconds each, so it is for many sentences. JAX always does so.

    Raises:
        UserError: Model and tokenizer differ in their number of tokens.
    """

    def __init__(self, model: Any, problem: Any, hparams: HParams | None = None, jit_compile: bool = False):
        self.models = _listed(model)
        if not self.models:
            raise UserError("an ensemble needs at least one model")
        self.hparams = self.models[0].hparams if hparams is None else hparams
        self.tokenizer = getattr(problem, "tokenizer", problem)
        for one in self.models:
            if self.tokenizer.vocab_size != one.vocab_size:
                raise UserError(
                    f"the model has {one.vocab_size} tokens and the tokenizer {self.tokenizer.vocab_size}: "
                    "they do not belong together"
                )
            one.adopt(self.tokenizer)
        self.constraint = self.tokenizer.constraint
        self._beam_search = BatchedBeamSearch(self.models, jit_compile)
        self._score = compiled(self.score_batch, *self.models)

    @property
    def model(self) -> Any:
        """The model, or an ensemble's first one."""
        return self.models[0]

    @classmethod
    def load(
        cls, run_dir: Any, checkpoint: Any = None, precision: str = "float32", jit_compile: bool = False
    ) -> "Translator":
        """Returns the translator of a run directory, or of several: an ensemble.

        Args:
            run_dir: The run directory, or a list of them.
            checkpoint: "best", "last", "averaged", "ema" or a step, or a list of these: an ensemble of each run's; by
                default the best, or the last if none was evaluated.
            precision: "float32" or "bfloat16", of weights and computation; softmax and scores are always float32.
            jit_compile: See `Translator`.

        Raises:
            UserError: There is no such run or checkpoint, it is damaged, or the runs' vocabularies differ.
        """
        from keras_transformer.runs.run import Run

        runs = [Run.open(path) for path in _listed(run_dir)]
        for run in runs[1:]:
            if run.tokenizer.fingerprint != runs[0].tokenizer.fingerprint:
                raise UserError(
                    f"{runs[0].path} and {run.path} have different vocabularies; an ensemble needs runs of one "
                    "prepared corpus"
                )
        models = [run.load_model(name, precision) for run in runs for name in _listed(checkpoint)]
        return cls(models, runs[0].tokenizer, runs[0].hparams, jit_compile)

    @overload
    def translate(self, texts: str, *args: Any, **options: Any) -> str: ...  # type: ignore[overload-overlap]

    @overload
    def translate(self, texts: Iterable[str], *args: Any, **options: Any) -> list[list[Hypothesis]]: ...

    def translate(
        self, texts: str | Iterable[str], beam_size: int | None = None, alpha: float | None = None, nbest: int = 1,
        extra_length: int | None = None, *, min_length: int = 0, max_source_length: int | None = None,
        prefixes: Sequence | None = None, sampling: Sampling | None = None, constraint: Any = "grammar",
        token_scores: bool = False, alignments: bool = False, report: Callable[[int, int], Any] | None = None,
        cut: Callable[[int, int], Any] | None = None,
    ) -> str | list[list[Hypothesis]]:  # fmt: skip
        """Return the translation of one text, or a list of the `nbest` best `Hypothesis` for each of several texts.

        The best hypothesis comes first. There are fewer than `nbest` if the search finds no more.

        The result for a text does not depend on the others. An empty text gives an empty translation. A flat tree, of a
        sentence that is not parsed, has no tokens and a score of −∞.

        Args:
            texts: One source sentence, for its translation as a str; or source sentences, for hypotheses.
            beam_size: Beams a sentence, 1 for greedy search; the hparams' by default.
            alpha: Exponent of the length penalty; the hparams' by default.
            nbest: Hypotheses a sentence, at most `beam_size`.
            extra_length: Most tokens beyond the source's; the hparams' by default.
            min_length: Least tokens of a translation, as far as `extra_length` allows.
            max_source_length: Most tokens of a source, EOS counted; what is behind is cut. Where trees are wanted, a
                longer sentence gets a flat one, without a search. None for all.
            prefixes: What each translation begins with: a text, or its ids, for each of `texts`; None for nothing.
            sampling: `Sampling`: `beam_size` translations are drawn and the `nbest` best of them returned.
            constraint: Which tokens may come next, see `SearchOptions`. "grammar": what the tokenizer's grammar allows,
                if there is one, so that trees are always whole. None: any.
            token_scores: Whether hypotheses have their `token_log_probabilities`.
            alignments: Whether hypotheses have their `alignment`.
            report: Called with (sentences done, all sentences) after each batch.
            cut: Called with (number of the text from 0, its tokens) for each source that is too long.

        Raises:
            UserError: An argument is out of range or needs a list of texts, or the constraint allows no translation of
                a text. A parser gives such a text a flat tree instead.
            NonFiniteOutputs: The model's outputs for a text are not finite.
        """
        options = SearchOptions(
            beam_size, alpha, nbest, extra_length, min_length, max_source_length, sampling, constraint
        ).complete(self.hparams, self.constraint)
        if isinstance(texts, str):
            if nbest != 1 or token_scores or alignments:
                raise UserError("nbest, token_scores and alignments need a list of texts: translate([text], …)")
            texts, one_text = [texts], True
        else:
            texts, one_text = list(texts), False
        sources = self._source_ids(texts, max_source_length, cut)
        prefixes = self._prefix_ids(prefixes, len(texts))
        results = [[self._unparsed(text)] for text in texts]
        rows = [i for i, source in enumerate(sources) if len(source) > 1]
        done = len(texts) - len(rows)
        few_shapes = self._beam_search.few_shapes
        for batch in by_length(rows, sources, options.beam_size, options.extra_length):
            source = padded([sources[i] for i in batch], few_shapes)
            inputs = search_inputs(source, [texts[i] for i in batch], [prefixes[i] for i in batch], options, few_shapes)
            found = self._beam_search.search(source, inputs, options.static())
            for i, *best in zip(batch, *(values[:, :nbest] for values in found)):
                results[i] = self._hypotheses(i, texts[i], *best)
            done += len(batch)
            if report:
                report(done, len(texts))
        if token_scores or alignments:
            return self._explained(sources, results, token_scores, alignments)
        return results[0][0].text if one_text else results

    def score(self, sources: Iterable[str], targets: Iterable, alpha: float | None = None) -> list[Hypothesis]:
        """Return a `Hypothesis` for each pair: the target's log-probability and score, teacher-forced.

        Args:
            sources: Source sentences.
            targets: Target sentences, or their ids.
            alpha: Exponent of the length penalty; the hparams' by default.

        Raises:
            UserError: The numbers of sources and targets differ.
            NonFiniteOutputs: The model's outputs for a pair are not finite.
        """
        alpha = self.hparams.alpha if alpha is None else alpha
        sources, targets = list(sources), list(targets)
        source_ids = [ids + [EOS] for ids in self.tokenizer.encode(sources)]
        target_ids = [self._target_ids(target) for target in targets]
        if len(source_ids) != len(target_ids):
            raise UserError(f"{len(source_ids)} sources but {len(target_ids)} targets")
        results: list = [None] * len(source_ids)
        for i, log_p, _ in self._scored(source_ids, target_ids):
            ids, total = target_ids[i], float(log_p.sum())
            text = targets[i] if isinstance(targets[i], str) else self.tokenizer.decode_outputs([sources[i]], [ids])[0]
            results[i] = Hypothesis(text, tuple(ids), total, total / ((5.0 + len(ids)) / 6.0) ** alpha, log_p)
        return results

    def attention(self, source: str, target: str | Sequence[int] | None = None) -> AttentionMaps:
        """Return the `AttentionMaps` of a source and its target, teacher-forced; of an ensemble its first model's.

        Args:
            source: A source sentence.
            target: Its target, a text or ids; by default its translation.

        Raises:
            UserError: The source is blank or has no translation, or the encoder's attention has no weights of all
                pairs.
        """
        if not isinstance(source, str):
            raise UserError("attention takes one text, not a list of them: attention(text)")
        source_ids = self._source_ids([source], None, None)[0]
        if len(source_ids) == 1:
            raise UserError("a blank text has no attention to show")
        ids = list(self.translate([source])[0][0].tokens) if target is None else self._target_ids(target)
        if not ids:
            raise UserError(f"{source!r} got no translation whose attention could be shown; give a target")
        if not all(0 <= i < self.tokenizer.vocab_size for i in ids):
            raise UserError(f"the target {ids} holds ids that are none of {self.tokenizer.vocab_size}")
        with self.model.recorded_attention() as recorded:
            self.model.states((np.array([source_ids], "int32"), np.array([[BOS, *ids[:-1]]], "int32")))
        weights = {kind: [np.array(of_layer, "float32") for of_layer in layers] for kind, layers in recorded.items()}
        dense = [of_layer.shape[2:] == (len(source_ids),) * 2 for of_layer in weights["encoder"]]
        if not (dense and all(dense)):
            raise UserError(f"{self.hparams.encoder_attention} attention does not tell its weights of all pairs")
        text = target if isinstance(target, str) else self.tokenizer.decode_outputs([source], [ids])[0]
        tokens = map(self._tokens, (source_ids, ids, [BOS, *ids[:-1]]))
        return AttentionMaps(source, text, *tokens, *map(np.concatenate, weights.values()))

    def _tokens(self, ids):
        words, word_of = self.tokenizer.words(ids)
        return Tokens(tuple(self.tokenizer.pieces(ids)), tuple(words), word_of)

    def _source_ids(self, texts, most, cut):
        """Ids of the sources, EOS included, at most `most` of each, if any; EOS alone of one that is not parsed."""
        sources = [[*ids, EOS] for ids in self.tokenizer.encode(texts)]
        for number, source in enumerate(sources):
            if most is not None and len(source) > most:
                if cut:
                    cut(number, len(source))
                source[0 if self.tokenizer.constraint else most - 1 :] = [EOS]
        return sources

    def _prefix_ids(self, prefixes, count):
        """Ids of what each of `count` translations begins with."""
        if prefixes is None:
            return [[]] * count
        prefixes = None if isinstance(prefixes, str) else ["" if prefix is None else prefix for prefix in prefixes]
        if prefixes is None or len(prefixes) != count:
            raise UserError(f"prefixes must be a list with one entry for each of the {count} texts")
        ids = [self.tokenizer.encode_prefixes([p])[0] if isinstance(p, str) else [int(i) for i in p] for p in prefixes]
        for prefix in ids:
            if not all(0 <= i < self.tokenizer.vocab_size and i not in (PAD, BOS, EOS) for i in prefix):
                raise UserError(f"the prefix {prefix} holds ids that cannot stand inside a translation")
        return ids

    def _target_ids(self, target):
        ids = self.tokenizer.encode_targets([target])[0] if isinstance(target, str) else [int(i) for i in target]
        return ids if ids and ids[-1] == EOS else [*ids, EOS]

    def _hypotheses(self, number, source, tokens, log_p, scores):
        """Return the finished hypotheses of one sentence: tokens `[nbest, length]`, log_p and scores `[nbest]`."""
        if np.isnan(scores).any():
            raise NonFiniteOutputs(number + 1)
        rows = [[int(i) for i in row if i != PAD] for row, score in zip(tokens, scores) if score > NEG_INF / 2]
        if not rows and self.tokenizer.constraint:
            return [self._unparsed(source)]
        if not rows:
            raise UserError(f"the constraint allows no translation of text {number + 1}")
        texts = self.tokenizer.decode_outputs([source] * len(rows), rows)
        return [
            Hypothesis(text, tuple(row), float(p), float(score))
            for text, row, p, score in zip(texts, rows, log_p, scores)
        ]

    def _unparsed(self, source):
        """What a text gets without a search: "" a blank one, of a parser a flat tree, which scores lowest."""
        (text,) = self.tokenizer.decode_outputs([source], [[]])
        score = float("-inf") if text else 0.0
        return Hypothesis(text, (), score, score)

    def _explained(self, sources, results, token_scores, alignments):
        """The hypotheses with what is asked for of their tokens: one more pass, teacher-forced."""
        owners = [(i, n) for i, found in enumerate(results) for n, hypothesis in enumerate(found) if hypothesis.tokens]
        targets = [list(results[i][n].tokens) for i, n in owners]
        results = [list(found) for found in results]
        for k, log_p, weights in self._scored([sources[i] for i, _ in owners], targets, alignments):
            i, n = owners[k]
            values = {"token_log_probabilities": log_p} if token_scores else {}
            results[i][n] = dataclasses.replace(results[i][n], alignment=weights, **values)
        return results

    def _scored(self, sources, targets, alignments=False):
        """Yield (row, log-probabilities `[tokens]`, alignment `[tokens, source_tokens]` or None), teacher-forced."""
        for batch in by_length(range(len(sources)), sources, 1, max(map(len, targets), default=0)):
            log_p, weights = self._score(
                padded([sources[i] for i in batch]), padded([targets[i] for i in batch]), alignments=alignments
            )
            log_p, weights = np.array(log_p), np.array(weights)
            for row, i in enumerate(batch):
                length, source_length = len(targets[i]), len(sources[i])
                if not np.isfinite(log_p[row, :length]).all():
                    raise NonFiniteOutputs(i + 1)
                yield i, log_p[row, :length], weights[row, :length, :source_length] if alignments else None

    def score_batch(self, source, labels, alignments=False):
        """Return log-probabilities of labels, float32 `[batch, length]`, teacher-forced, and alignments.

        Args:
            source: int `[batch, source_length]`.
            labels: int `[batch, length]`.
            alignments: Whether to return them, float32 `[batch, length, source_length]`; otherwise zeros `[1]`.
        """
        decoder_input = ops.concatenate([ops.full_like(labels[:, :1], BOS), labels[:, :-1]], axis=1)
        log_p, weights = [], []
        for model in self.models:
            with model.recorded_attention() as recorded:
                states = model.states((source, decoder_input))
            log_p.append(-smoothed_cross_entropy(labels, model.logits(states), 0.0)[1])
            weights.append(ops.mean(recorded["cross"][-1], axis=1))
        log_p = ops.logsumexp(ops.stack(log_p), axis=0) - float(np.log(len(self.models)))
        return log_p, ops.mean(ops.stack(weights), axis=0) if alignments else ops.zeros((1,))


def _listed(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]
