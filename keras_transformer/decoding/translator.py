"""Translation of texts with a trained model or an ensemble."""

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
        tokens: Token ids of the translation, including EOS.
        log_probability: log p(tokens | source), in nats.
        score: log_probability / ((5 + len(tokens)) / 6)^α.
        token_log_probabilities: Log-probability of each token given the tokens before it, float32 `[tokens]`, or None
            if not requested or if the text is blank.
        alignment: Attention from each token to each source token, float32 `[tokens, source_tokens]`, including EOS on
            both sides: the mean over the heads of the last decoder layer. None if not requested or if the text is
            blank.
    """

    text: str
    tokens: tuple
    log_probability: float
    score: float
    token_log_probabilities: np.ndarray | None = dataclasses.field(default=None, compare=False)
    alignment: np.ndarray | None = dataclasses.field(default=None, compare=False)


class Translator:
    """A model, or an ensemble, together with the tokenizer that it was trained with.

    Args:
        model: `Transformer`, or a list of them with the same vocabulary: an ensemble, whose probabilities are averaged.
        problem: `Problem` whose tokenizer the model uses, or a `Tokenizer`.
        hparams: `HParams` with the default `beam_size`, `alpha` and `extra_length` (default: those of the model).
        jit_compile: Whether TensorFlow compiles the search with XLA. It is faster, but compiling each of a few batch
            shapes takes seconds, so it suits many sentences. JAX always compiles.

    Raises:
        UserError: The vocabulary sizes of model and tokenizer differ, or the list of models is empty.
    """

    def __init__(self, model: Any, problem: Any, hparams: HParams | None = None, jit_compile: bool = False):
        self.models = _listed(model)
        if not self.models:
            raise UserError("model must be a Transformer or a list of at least one, got an empty list")
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
        """The model, or the first model of an ensemble."""
        return self.models[0]

    @classmethod
    def load(
        cls, run_dir: Any, checkpoint: Any = None, precision: str = "float32", jit_compile: bool = False
    ) -> "Translator":
        """Return the translator of a run directory, or an ensemble of several.

        Args:
            run_dir: Run directory, or a list of them.
            checkpoint: "best", "last", "averaged", "ema" or a step. A list adds all these checkpoints of each run to
                the ensemble. The default is the best one, or the last if none was evaluated.
            precision: "float32" or "bfloat16", for weights and computation. Softmax and scores are always float32.
            jit_compile: See `Translator`.

        Raises:
            UserError: A run or checkpoint is missing or damaged, or the vocabularies of the runs differ.
        """
        from keras_transformer.runs.run import Run

        runs = [Run.open(path) for path in _listed(run_dir)]
        for run in runs[1:]:
            if run.tokenizer.fingerprint != runs[0].tokenizer.fingerprint:
                raise UserError(
                    f"{runs[0].path} and {run.path} have different vocabularies; an ensemble needs runs with the same "
                    "prepared corpus"
                )
        models = [run.load_model(name, precision) for run in runs for name in _listed(checkpoint)]
        return cls(models, runs[0].tokenizer, runs[0].hparams, jit_compile)

    @classmethod
    def from_pretrained(cls, name: Any, revision: str | None = None, precision: str = "float32") -> "Translator":
        """Return the translator of a Marian model in the format of Hugging Face transformers, such as OPUS-MT.

        Args:
            name: A directory, or the name USER/NAME of a model on the hub, which needs the package huggingface_hub.
            revision: Branch, tag or commit on the hub (default: the main branch).
            precision: See `load`.

        Raises:
            UserError: The model is missing or damaged, or not one that `MarianTransformer` computes.
        """
        from keras_transformer.pretrained.huggingface import locate, read_marian

        model = read_marian(locate(name, revision))
        return cls(model.build_model(precision), model.tokenizer, model.hparams)

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
        """Return the translation of one text, or lists of hypotheses for several texts.

        The result for a text does not depend on the other texts. An empty text has an empty translation.

        Args:
            texts: A source sentence, or a list of them.
            beam_size: Number of beams per sentence; 1 for greedy search (default: the value of the hparams).
            alpha: Exponent of the length penalty (default: the value of the hparams).
            nbest: Number of hypotheses per sentence, at most `beam_size`.
            extra_length: Maximum number of tokens beyond the source length (default: the value of the hparams).
            min_length: Minimum number of tokens of a translation, within the limit set by `extra_length`.
            max_source_length: Maximum number of tokens of a source, including EOS. Longer sources are truncated; a
                parser gives them a flat tree without a search. None for no limit.
            prefixes: Beginning of each translation: a list with a text or token ids for each of `texts`, or None.
            sampling: `Sampling`, to draw `beam_size` translations and return the `nbest` best ones.
            constraint: Constraint on the next token, see `SearchOptions`. "grammar" applies the tokenizer's grammar,
                if it has one, so that all trees are complete. None allows all tokens.
            token_scores: Whether hypotheses include `token_log_probabilities`.
            alignments: Whether hypotheses include `alignment`.
            report: Function called with (finished sentences, all sentences) after each batch.
            cut: Function called with (index of the text, its number of tokens) for each source that is too long.

        Returns:
            For a str, its translation as a str. For a list, a list of `Hypothesis` for each text, best first. It has
            fewer than `nbest` entries if the search finds no more. The flat tree of a sentence that was not parsed has
            no tokens and a score of −∞.

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
        """Return a `Hypothesis` for each pair with the teacher-forced log-probability and score of the target.

        Args:
            sources: Source sentences.
            targets: Target sentences, or their token ids.
            alpha: Exponent of the length penalty (default: the value of the hparams).

        Raises:
            UserError: The numbers of sources and targets differ.
            NonFiniteOutputs: The model's outputs for a pair are not finite.
        """
        alpha = self.hparams.alpha if alpha is None else alpha
        sources, targets = list(sources), list(targets)
        source_ids = [ids + [EOS] for ids in self.tokenizer.encode(sources)]
        target_ids = [self._target_ids(target) for target in targets]
        if len(source_ids) != len(target_ids):
            raise UserError(
                f"sources and targets must have the same length, got {len(source_ids)} and {len(target_ids)}"
            )
        results: list = [None] * len(source_ids)
        for i, log_p, _ in self._scored(source_ids, target_ids):
            ids, total = target_ids[i], float(log_p.sum())
            text = targets[i] if isinstance(targets[i], str) else self.tokenizer.decode_outputs([sources[i]], [ids])[0]
            results[i] = Hypothesis(text, tuple(ids), total, total / ((5.0 + len(ids)) / 6.0) ** alpha, log_p)
        return results

    def attention(self, source: str, target: str | Sequence[int] | None = None) -> AttentionMaps:
        """Return the teacher-forced `AttentionMaps` of a source and a target. An ensemble uses its first model.

        Args:
            source: A source sentence.
            target: Its target, a text or token ids (default: the translation).

        Raises:
            UserError: The source is blank or has no translation, the target has an unknown id, or the encoder's
                attention does not compute weights for all pairs of tokens.
        """
        if not isinstance(source, str):
            raise UserError(f"source must be one text, got a {type(source).__name__}: call attention(text)")
        source_ids = self._source_ids([source], None, None)[0]
        if len(source_ids) == 1:
            raise UserError("a blank text has no attention to show")
        ids = list(self.translate([source])[0][0].tokens) if target is None else self._target_ids(target)
        if not ids:
            raise UserError(f"{source!r} has no translation to show the attention of; give a target")
        if not all(0 <= i < self.tokenizer.vocab_size for i in ids):
            raise UserError(f"target ids must be below the vocabulary size, {self.tokenizer.vocab_size}, got {ids}")
        with self.model.recorded_attention() as recorded:
            self.model.states((np.array([source_ids], "int32"), np.array([[BOS, *ids[:-1]]], "int32")))
        weights = {kind: [np.array(of_layer, "float32") for of_layer in layers] for kind, layers in recorded.items()}
        dense = [of_layer.shape[2:] == (len(source_ids),) * 2 for of_layer in weights["encoder"]]
        if not (dense and all(dense)):
            raise UserError(
                f"{self.hparams.encoder_attention} attention cannot be shown, because it does not compute weights for "
                "all pairs of tokens"
            )
        text = target if isinstance(target, str) else self.tokenizer.decode_outputs([source], [ids])[0]
        tokens = map(self._tokens, (source_ids, ids, [BOS, *ids[:-1]]))
        return AttentionMaps(source, text, *tokens, *map(np.concatenate, weights.values()))

    def _tokens(self, ids):
        words, word_of = self.tokenizer.words(ids)
        return Tokens(tuple(self.tokenizer.pieces(ids)), tuple(words), word_of)

    def _source_ids(self, texts, most, cut):
        """Return the token ids of the sources, including EOS, at most `most` each; EOS only for unparsed sentences."""
        sources = [[*ids, EOS] for ids in self.tokenizer.encode(texts)]
        for number, source in enumerate(sources):
            if most is not None and len(source) > most:
                if cut:
                    cut(number, len(source))
                source[0 if self.tokenizer.constraint else most - 1 :] = [EOS]
        return sources

    def _prefix_ids(self, prefixes, count):
        """Return the token ids at the beginning of each of `count` translations."""
        if prefixes is None:
            return [[]] * count
        prefixes = None if isinstance(prefixes, str) else ["" if prefix is None else prefix for prefix in prefixes]
        if prefixes is None or len(prefixes) != count:
            raise UserError(f"prefixes must be a list with one entry for each of the {count} texts")
        ids = [self.tokenizer.encode_prefixes([p])[0] if isinstance(p, str) else [int(i) for i in p] for p in prefixes]
        for prefix in ids:
            if not all(0 <= i < self.tokenizer.vocab_size and i not in (PAD, BOS, EOS) for i in prefix):
                raise UserError(
                    f"prefix ids must be below the vocabulary size, {self.tokenizer.vocab_size}, and not PAD, BOS or "
                    f"EOS, got {prefix}"
                )
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
        """Return the result for a text without a search: "" for a blank text, a parser's flat tree otherwise."""
        (text,) = self.tokenizer.decode_outputs([source], [[]])
        score = float("-inf") if text else 0.0
        return Hypothesis(text, (), score, score)

    def _explained(self, sources, results, token_scores, alignments):
        """Return the hypotheses with log-probabilities and alignments of their tokens from a teacher-forced pass."""
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
        """Return teacher-forced log-probabilities of labels, and alignments.

        Args:
            source: int `[batch, source_length]`.
            labels: int `[batch, length]`.
            alignments: Whether to return alignments.

        Returns:
            Log-probabilities float32 `[batch, length]`; alignments float32 `[batch, length, source_length]`, or
            zeros `[1]`.
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
