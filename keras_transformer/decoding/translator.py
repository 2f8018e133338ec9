"""Translator: text in, text out, with a trained model."""

import dataclasses

import numpy as np
from keras import ops

from keras_transformer.data.tokenizer import BOS, EOS, PAD
from keras_transformer.decoding.beam_search import IMPOSSIBLE, search
from keras_transformer.errors import UserError
from keras_transformer.models.compiled import COMPILES_EACH_SHAPE, compiled, rounded_up
from keras_transformer.models.loss import smoothed_cross_entropy

BATCH_TOKENS = 32_768
"""Most source and target positions of all beams that are decoded together: memory, not results, depends on it."""
BATCH_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One translation.

    Attributes:
        text: The translation.
        tokens: Its ids, EOS included.
        log_probability: log p(tokens | source), in nats.
        score: log_probability / ((5 + len(tokens)) / 6)^α.
    """

    text: str
    tokens: tuple
    log_probability: float
    score: float


class Translator:
    """Translates with a model and the tokenizer that it was trained with.

    Args:
        model: `Transformer`.
        problem: Problem whose tokenizer the model speaks, or a `Tokenizer`.
        hparams: `beam_size`, `alpha` and `extra_length` are read.

    Raises:
        UserError: Model and tokenizer differ in their number of tokens.
    """

    def __init__(self, model, problem, hparams):
        self.model, self.hparams = model, hparams
        self.tokenizer = getattr(problem, "tokenizer", problem)
        if self.tokenizer.vocab_size != model.vocab_size:
            raise UserError(
                f"the model has {model.vocab_size} tokens and the tokenizer {self.tokenizer.vocab_size}: "
                "they do not belong together"
            )
        self._search = compiled(self._search_batch, model)
        self._score = compiled(self._score_batch, model)

    @classmethod
    def load(cls, run_dir, checkpoint=None):
        """Returns the translator of a run directory.

        Args:
            run_dir: The run directory.
            checkpoint: "best", "last", "averaged" or a step; by default the best, or the last if none was evaluated.

        Raises:
            UserError: There is no such run or checkpoint, or it is damaged.
        """
        from keras_transformer.runs.directory import Run

        run = Run.open(run_dir)
        return cls(run.load_model(checkpoint), run.tokenizer, run.hparams)

    def translate(self, texts, beam_size=None, alpha=None, nbest=1, extra_length=None, report=None):
        """Returns a list of the `nbest` best `Hypothesis` for each text, best first.

        The result for a text does not depend on the others. An empty text gives an empty translation.

        Args:
            texts: Source sentences.
            beam_size: Beams a sentence, 1 for greedy search; the hparams' by default.
            alpha: Exponent of the length penalty; the hparams' by default.
            nbest: Hypotheses a sentence, at most `beam_size`.
            extra_length: Most tokens beyond the source's; the hparams' by default.
            report: Called with (sentences done, all sentences) after each batch.

        Raises:
            UserError: An argument is out of range, or `texts` is one text.
        """
        beam_size = self.hparams.beam_size if beam_size is None else beam_size
        alpha = self.hparams.alpha if alpha is None else alpha
        extra_length = self.hparams.extra_length if extra_length is None else extra_length
        if beam_size < 1 or not 1 <= nbest <= beam_size:
            raise UserError(f"beam_size={beam_size} and nbest={nbest}: nbest must be from 1 to beam_size")
        if alpha < 0:
            raise UserError(f"alpha={alpha}: the length penalty's exponent must be at least 0")
        if extra_length < 0:
            raise UserError(f"extra_length={extra_length}: the tokens beyond the source's length must be at least 0")
        if isinstance(texts, str):
            raise UserError("translate takes a list of texts, not one text: translate([text])")
        texts = list(texts)
        sources = [ids + [EOS] for ids in self.tokenizer.encode(texts)]
        results = [[Hypothesis("", (), 0.0, 0.0)] for _ in texts]
        rows = [i for i, source in enumerate(sources) if len(source) > 1]
        done = len(texts) - len(rows)
        for batch in _by_length(rows, sources, beam_size, extra_length):
            source = _padded([sources[i] for i in batch])
            tokens, log_p, scores = self._search(
                source, np.float32(alpha), extra_length=extra_length, beam_size=beam_size, nbest=nbest
            )
            for i, *hypotheses in zip(batch, np.array(tokens), np.array(log_p), np.array(scores)):
                results[i] = self._hypotheses(*hypotheses)
            done += len(batch)
            if report:
                report(done, len(texts))
        return results

    def score(self, sources, targets, alpha=None):
        """Returns a `Hypothesis` for each pair: the target's log-probability and score, teacher-forced.

        Args:
            sources: Source sentences.
            targets: Target sentences, or their ids.
            alpha: Exponent of the length penalty; the hparams' by default.
        """
        alpha = self.hparams.alpha if alpha is None else alpha
        targets = list(targets)
        source_ids = [ids + [EOS] for ids in self.tokenizer.encode(sources)]
        target_ids = [self._target_ids(target) for target in targets]
        if len(source_ids) != len(target_ids):
            raise UserError(f"{len(source_ids)} sources but {len(target_ids)} targets")
        results = [None] * len(source_ids)
        for batch in _by_length(range(len(source_ids)), source_ids, 1, max(map(len, target_ids), default=0)):
            labels = _padded([target_ids[i] for i in batch])
            log_p = np.array(self._score(_padded([source_ids[i] for i in batch]), labels))
            for i, value in zip(batch, log_p):
                ids = target_ids[i]
                text = targets[i] if isinstance(targets[i], str) else self.tokenizer.decode([ids])[0]
                penalty = ((5.0 + len(ids)) / 6.0) ** alpha
                results[i] = Hypothesis(text, tuple(ids), float(value), float(value) / penalty)
        return results

    def _target_ids(self, target):
        ids = self.tokenizer.encode([target])[0] if isinstance(target, str) else [int(i) for i in target]
        return ids if ids and ids[-1] == EOS else [*ids, EOS]

    def _hypotheses(self, tokens, log_p, scores):
        """The finished hypotheses of one sentence: tokens `[nbest, length]`, log_p and scores `[nbest]`."""
        rows = [[int(i) for i in row if i != PAD] for row, score in zip(tokens, scores) if score > IMPOSSIBLE / 2]
        texts = self.tokenizer.decode(rows)
        return [
            Hypothesis(text, tuple(row), float(p), float(score))
            for text, row, p, score in zip(texts, rows, log_p, scores)
        ]

    def _search_batch(self, source, alpha, extra_length, beam_size, nbest):
        """int `[batch, source_length]` → tokens `[batch, nbest, L]`, log-probabilities and scores `[batch, nbest]`."""
        memory, memory_mask = self.model.encode(source)
        projected = self.model.project_memory(memory)
        lengths = ops.sum(ops.cast(source != PAD, "int32"), axis=1)
        limits = ops.where(lengths > 0, lengths + extra_length, 1)  # an empty row, there to round up, ends at once
        rows, length = ops.shape(source)[0], ops.shape(source)[1] + extra_length
        cache = self.model.empty_cache(rows * beam_size, length)

        def decode(tokens, index, cache):
            return self.model.decode_step(tokens, index, cache, projected, memory_mask)

        state = search(decode, cache, limits, length, beam_size, alpha, nbest)
        return (
            state.finished_tokens[:, :nbest],
            state.finished_log_probabilities[:, :nbest],
            state.finished_scores[:, :nbest],
        )

    def _score_batch(self, source, labels):
        """int `[batch, source_length]`, `[batch, target_length]` → log-probabilities `[batch]`."""
        decoder_input = ops.concatenate([ops.full_like(labels[:, :1], BOS), labels[:, :-1]], axis=1)
        _, nll = smoothed_cross_entropy(labels, self.model((source, decoder_input), training=False), 0.0)
        return -ops.sum(nll * ops.cast(labels != PAD, "float32"), axis=1)


def _by_length(rows, sources, beam_size, extra_length):
    """Yields lists of row numbers, of about the same source length, longest first."""
    rows = sorted(rows, key=lambda i: (-len(sources[i]), i))
    while rows:
        positions = beam_size * (2 * len(sources[rows[0]]) + extra_length)
        count = max(1, min(BATCH_ROWS, BATCH_TOKENS // positions))
        yield rows[:count]
        rows = rows[count:]


def _padded(sequences):
    """int32 `[rows, longest]`; where every shape is compiled, both are rounded up to one of few numbers."""
    rows, longest = len(sequences), max(map(len, sequences))
    if COMPILES_EACH_SHAPE:
        rows, longest = rounded_up(rows), rounded_up(max(longest, 8))
    ids = np.full((rows, longest), PAD, dtype="int32")
    for row, sequence in zip(ids, sequences):
        row[: len(sequence)] = sequence
    return ids
