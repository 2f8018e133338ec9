"""Translation of texts with a trained model or an ensemble."""

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np
from keras import ops

from keras_transformer.backend.compilation import compiled
from keras_transformer.config.hparams import HParams
from keras_transformer.data.language_tags import tag_texts
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD
from keras_transformer.decoding.base_translator import BaseTranslator, Hypothesis
from keras_transformer.decoding.batched_search import LENGTH_ALONE, BatchedBeamSearch
from keras_transformer.decoding.ctranslate2_translator import CTranslate2Translator
from keras_transformer.decoding.engines import choose_engine
from keras_transformer.decoding.search_batches import by_length, padded, search_inputs
from keras_transformer.decoding.search_options import SearchOptions
from keras_transformer.decoding.token_selection import NEG_INF
from keras_transformer.models.loss import smoothed_cross_entropy
from keras_transformer.utils.errors import NonFiniteOutputs, TextError, UserError
from keras_transformer.visualization.attention import KINDS, AttentionMaps, Tokens


class Translator(BaseTranslator):
    """Translator that uses Keras to run a model, or an ensemble of models with the same vocabulary.

    Args:
        model: `Transformer`, or a list of `Transformer`s. An ensemble averages the probabilities of its models.
        problem: `Problem` whose tokenizer the model uses, or a `Tokenizer`.
        hparams: `HParams` with the default `beam_size`, `alpha` and `extra_length` (default: the model's).
        jit_compile: Whether TensorFlow compiles the search with XLA. The compiled search is faster, but each batch
            shape takes seconds to compile, so compilation pays off only for many sentences. "auto" compiles only the
            search for a single sentence of at most 64 tokens. JAX always compiles.

    Raises:
        UserError: The vocabulary sizes of the model and tokenizer differ, or the list of models is empty.
    """

    engine = "keras"

    def __init__(self, model: Any, problem: Any, hparams: HParams | None = None, jit_compile: Any = False):
        self.models = _listed(model)
        if not self.models:
            raise UserError("model must be a Transformer or a non-empty list of Transformers, got an empty list")
        super().__init__(getattr(problem, "tokenizer", problem), self.models[0].hparams if hparams is None else hparams)
        for one in self.models:
            if self.tokenizer.vocab_size != one.vocab_size:
                raise UserError(
                    f"model and tokenizer must have the same vocabulary size, got {one.vocab_size} and "
                    f"{self.tokenizer.vocab_size}. Use the tokenizer that the model was trained with."
                )
            one.adopt(self.tokenizer)
        self._beam_search = BatchedBeamSearch(self.models, jit_compile)
        self._score = compiled(self.score_batch, *self.models)

    def compile_ahead(self, **options: Any) -> None:
        if self._beam_search.compiles_alone:
            complete = SearchOptions(**options).complete(self.hparams, self.constraint)
            source = np.full((1, LENGTH_ALONE), EOS, "int32")
            inputs = search_inputs(source, [""], [[]], [[]], complete, self._beam_search.few_shapes)
            self._beam_search.search(source, inputs, complete.static())

    @property
    def model(self) -> Any:
        """The model, or the first model of an ensemble."""
        return self.models[0]

    @overload
    @classmethod
    def load(
        cls, run_dir: Any, checkpoint: Any = ..., precision: str = ..., jit_compile: Any = ...,
        engine: Literal["keras"] = ...,
    ) -> "Translator": ...  # fmt: skip

    @overload
    @classmethod
    def load(
        cls, run_dir: Any, checkpoint: Any = ..., precision: str = ..., jit_compile: Any = ..., engine: str = ...
    ) -> BaseTranslator: ...

    @classmethod
    def load(
        cls, run_dir: Any, checkpoint: Any = None, precision: str = "float32", jit_compile: Any = False,
        engine: str = "keras",
    ) -> BaseTranslator:  # fmt: skip
        """Return a translator for a run directory, or for an ensemble of several run directories.

        Args:
            run_dir: Run directory, or a list of run directories.
            checkpoint: "best", "last", "averaged", "ema" or a step, or a list of these. The ensemble contains all
                listed checkpoints of each run (default: the best, or the last if there is no best).
            precision: "float32" or "bfloat16", for weights and computation. Softmax and scores are always float32.
            jit_compile: See `Translator`.
            engine: "keras", "ctranslate2" or "auto" (see `decoding.engines.choose_engine`). With CTranslate2, the
                result is a `CTranslate2Translator`, which has no method `attention`.

        Raises:
            UserError: A run or checkpoint is missing or damaged, the vocabularies of the runs differ, or CTranslate2 is
                not installed or does not support the model.
        """
        from keras_transformer.runs.run import Run

        runs = [Run.open(path) for path in _listed(run_dir)]
        if choose_engine(engine, runs, checkpoint, precision, jit_compile) == "ctranslate2":
            return CTranslate2Translator.from_run(runs[0], checkpoint)
        return cls.from_runs(runs, checkpoint, precision, jit_compile)

    @classmethod
    def from_runs(
        cls, runs: Sequence[Any], checkpoint: Any = None, precision: str = "float32", jit_compile: Any = False
    ) -> "Translator":
        """Return a translator for one or more `Run`s. See `load` for the other arguments and errors."""
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
        """Return a translator for a Marian model in the format of Hugging Face transformers, such as OPUS-MT.

        Args:
            name: A directory, or the name of a model on the Hub, "USER/NAME", which needs the package huggingface_hub.
            revision: Branch, tag or commit on the Hub (default: the main branch).
            precision: See `load`.

        Raises:
            UserError: The model is missing or damaged, or `MarianTransformer` does not support it.
        """
        from keras_transformer.pretrained.huggingface import locate, read_marian

        model = read_marian(locate(name, revision))
        return cls(model.build_model(precision), model.tokenizer, model.hparams)

    def attention(self, source: str, target: str | Sequence[int] | None = None) -> AttentionMaps:
        """Return the `AttentionMaps` of a source and a target, computed with teacher forcing.

        An ensemble uses only its first model.

        Args:
            source: A source sentence. For a model with several target languages, it must begin with a tag such as
                "<2de>".
            target: The target, as a text or as token ids (default: the translation of the source).

        Raises:
            UserError: The source is blank, lacks a tag or has no translation, the target contains an invalid token id,
                or the encoder's attention does not compute weights for all pairs of tokens.
        """
        if not isinstance(source, str):
            raise UserError(f"source must be one text, got a {type(source).__name__}. Call attention(text).")
        (source,) = tag_texts([source], None, self.tokenizer.tags)
        (hidden,), (spans,) = self.hide_spans([source])
        source_ids = self._source_ids([hidden], None, None)[0]
        if len(source_ids) == 1:
            raise UserError("a blank text has no attention to show")
        ids = list(self.translate([source])[0][0].tokens) if target is None else self._target_ids(target, spans)
        if not ids:
            raise UserError(
                f"the model translates {source!r} as an empty text, which has no attention to show; pass a target"
            )
        with self.model.recorded_attention() as recorded:
            self.model.states((np.array([source_ids], "int32"), np.array([[BOS, *ids[:-1]]], "int32")))
        weights = {kind: [np.array(of_layer, "float32") for of_layer in layers] for kind, layers in recorded.items()}
        dense = [of_layer.shape[2:] == (len(source_ids),) * 2 for of_layer in weights["encoder"]]
        if not (dense and all(dense)):
            raise UserError(
                f"{self.hparams.encoder_attention} attention cannot be shown, because it does not compute weights for "
                "all pairs of tokens"
            )
        text = target if isinstance(target, str) else self._decode(hidden, ids, spans)
        tokens = map(self._tokens, (source_ids, ids, [BOS, *ids[:-1]]))
        return AttentionMaps(source, text, *tokens, *(np.concatenate(weights[kind]) for kind in KINDS))

    def _tokens(self, ids):
        words, word_of = self.tokenizer.words(ids)
        return Tokens(tuple(self.tokenizer.pieces(ids)), tuple(words), word_of)

    def _search(self, rows, texts, sources, prefixes, phrases, options):
        few_shapes = self._beam_search.few_shapes
        for batch in by_length(rows, sources, options.beam_size, options.extra_length):
            source = padded([sources[i] for i in batch], few_shapes)
            of_batch = ([values[i] for i in batch] for values in (texts, prefixes, phrases))
            inputs = search_inputs(source, *of_batch, options, few_shapes)
            found = self._beam_search.search(source, inputs, options.static())
            best = zip(batch, *(values[:, : options.nbest] for values in found))
            yield {i: self._hypotheses(i, texts[i], *hypotheses) for i, *hypotheses in best}

    def _hypotheses(self, number, source, tokens, log_p, scores):
        """Convert tokens `[nbest, length]`, log_p and scores `[nbest]` of a sentence to a list of `Hypothesis`."""
        if np.isnan(scores).any():
            raise NonFiniteOutputs(number)
        rows = [[int(i) for i in row if i != PAD] for row, score in zip(tokens, scores) if score > NEG_INF / 2]
        if not rows and self.tokenizer.constraint:
            return [self._unparsed(source)]
        if not rows:
            raise TextError(number, "the search options allow no translation of {}. Relax or omit some of them.")
        texts = self.tokenizer.decode_outputs([source] * len(rows), rows)
        return [
            Hypothesis(text, tuple(row), float(p), float(score))
            for text, row, p, score in zip(texts, rows, log_p, scores)
        ]

    def _scored(self, sources, targets, alignments=False):
        for batch in by_length(range(len(sources)), sources, 1, max(map(len, targets), default=0)):
            log_p, weights = self._score(
                padded([sources[i] for i in batch]), padded([targets[i] for i in batch]), alignments=alignments
            )
            log_p, weights = np.array(log_p), np.array(weights)
            for row, i in enumerate(batch):
                length, source_length = len(targets[i]), len(sources[i])
                if not np.isfinite(log_p[row, :length]).all():
                    raise NonFiniteOutputs(i)
                yield i, log_p[row, :length], weights[row, :length, :source_length] if alignments else None

    def score_batch(self, source, labels, alignments=False):
        """Return the log-probability of each label, and alignments, computed with teacher forcing.

        Args:
            source: int `[batch, source_length]`.
            labels: int `[batch, length]`.
            alignments: Whether to return alignments.

        Returns:
            The log-probabilities, float32 `[batch, length]`, and the alignments, float32
            `[batch, length, source_length]`. The alignments are the cross-attention weights of the last layer, averaged
            over heads and models. If `alignments` is False, the second array has shape `[1]` and contains 0.
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
