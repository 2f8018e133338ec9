"""Engines of the server: a run, a SavedModel, or an export for CTranslate2."""

import abc
import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.backend.loading import check_packages, load_keras
from keras_transformer.config.hparams import HParams
from keras_transformer.exports.description import DESCRIPTION
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import read_json

BATCH_ROWS = 64
"""Maximum number of texts per call of an engine."""
LIMITS_APART = 16
"""Step between length limits of outputs: CTranslate2 takes one limit per call, and few limits mean few calls."""


class Output(NamedTuple):
    """One translation.

    Attributes:
        text: The translation, or for a parser the tree in brackets.
        score: Its score, or None for a sentence that a parser did not parse.
    """

    text: str
    score: float | None


class Engine(abc.ABC):
    """Base class of engines. One thread makes all calls of `translate` and `attention`, one after the other.

    Attributes:
        about: Description of the model, {name: value}, for JSON.
        max_nbest: Maximum number of translations of a text.
        max_tokens: Maximum number of tokens of a text, including EOS; None if the engine cuts longer texts.
        trees: Whether translations are trees in brackets.
        shows_attention: Whether the engine supports `attention`.
    """

    about: dict[str, Any]
    max_nbest: int
    max_tokens: int | None = None
    trees = False
    shows_attention = False

    @abc.abstractmethod
    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, including EOS. Any thread may call this method."""

    @abc.abstractmethod
    def translate(self, texts: Sequence[str], nbest: int) -> list[list[Output]]:
        """Return up to `nbest` outputs for each text, best first.

        Raises:
            UserError: A text cannot be translated.
        """

    def attention(self, source: str, target: str) -> dict[str, Any]:
        """Return the attention weights of a source and its translation as input of `attention_view.js`, for JSON.

        Raises:
            UserError: The model has no weights to show.
        """
        raise UserError("an export has no attention maps. Serve a run instead.")


class RunEngine(Engine):
    """A run directory.

    Args:
        path: The run, or a list of runs for an ensemble.
        checkpoint, precision, jit_compile: See `Translator.load`.
        search: `beam_size`, `alpha` and `extra_length`; None for the values of the run.
    """

    def __init__(self, path, checkpoint=None, precision="float32", jit_compile=False, **search):
        from keras_transformer.runs.run import Run

        runs = [Run.open(one) for one in ([path] if isinstance(path, str | os.PathLike) else path)]
        load_keras()
        from keras_transformer.decoding.search_options import SearchOptions
        from keras_transformer.decoding.translator import Translator

        self._translator = Translator.load([run.path for run in runs], checkpoint, precision, jit_compile)
        hparams = self._translator.hparams
        self._search = {name: getattr(hparams, name) if value is None else value for name, value in search.items()}
        self.max_nbest = self._search["beam_size"]
        SearchOptions(**self._search)  # raises if a value is out of range
        self.max_tokens = hparams.max_length
        self.trees = self._translator.tokenizer.constraint is not None
        self.shows_attention = not self.trees and hparams.encoder_attention == "full"
        names = [run.path.resolve().name for run in runs]
        self.about = {"model": ", ".join(names), "problem": runs[0].config["problem"]["name"]}

    def lengths(self, texts):
        return [len(ids) + 1 for ids in self._translator.tokenizer.encode(texts)]

    def translate(self, texts, nbest):
        found = self._translator.translate(texts, nbest=nbest, max_source_length=self.max_tokens, **self._search)
        return [[Output(one.text, _finite(one.score)) for one in hypotheses] for hypotheses in found]

    def attention(self, source, target):
        from keras_transformer.visualization.attention import view_data

        return view_data(self._translator.attention(source, target))


class SavedModelEngine(Engine):
    """An export of `--format=saved_model`, whose graph TensorFlow runs."""

    def __init__(self, path, about):
        check_packages(f"{path}, a SavedModel,", "tensorflow", ("tensorflow", "tensorflow-text"))
        os.environ["KERAS_BACKEND"] = "tensorflow"  # JAX cannot load it
        load_keras()
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  registers its operations

        self._tf, self._model = tf, tf.saved_model.load(str(path))
        self._signature = self._model.signatures["serving_default"]
        self.max_nbest = about["nbest"]
        self.trees = about.get("trees", False)
        self.about = _description(path, about)

    def lengths(self, texts):
        """Estimate four bytes per token, because the graph does not output the number of tokens."""
        return [len(text.encode()) // 4 + 2 for text in texts]

    def translate(self, texts, nbest):
        found = self._signature(inputs=self._tf.constant([text.encode() for text in texts], self._tf.string))
        outputs = []
        for row, scores in zip(found["nbest"].numpy(), found["scores"].numpy()):
            several = [Output(text.decode(), _finite(score)) for text, score in zip(row[:nbest], scores)]
            outputs.append(several[:1] + [one for one in several[1:] if one.score is not None])
        return outputs


class CTranslate2Engine(Engine):
    """An export of `--format=ctranslate2`, with CTranslate2's own search. It needs neither Keras nor a backend."""

    def __init__(self, path, about, threads=0, **search):
        from keras_transformer.data.tokenizers.loading import load_tokenizer

        try:
            import ctranslate2
        except ImportError:
            raise UserError("CTranslate2 is not installed: pip install ctranslate2==4.8.0") from None
        self._tokenizer = load_tokenizer(path)
        self._engine = ctranslate2.Translator(str(path), inter_threads=1, intra_threads=threads)
        self._pieces = self._tokenizer.pieces(range(self._tokenizer.vocab_size))
        self._ids = {piece: number for number, piece in enumerate(self._pieces)}
        usual = {**dataclasses.asdict(HParams()), **about}
        self._search = {name: usual[name] if value is None else value for name, value in search.items()}
        self.max_nbest, self.max_tokens = self._search["beam_size"], about["max_tokens"]
        self.trees = self._tokenizer.constraint is not None
        self.about = _description(path, about)

    def lengths(self, texts):
        return [len(ids) + 1 for ids in self._tokenizer.encode(texts)]

    def translate(self, texts, nbest):
        from keras_transformer.data.tokenizers.base import BOS, PAD

        sources = [[self._pieces[i] for i in ids] for ids in self._tokenizer.encode(texts)]
        rows = [i for i, source in enumerate(sources) if source]
        outputs = [
            [Output(text, None if text else 0.0)] for text in self._tokenizer.decode_outputs(texts, [[]] * len(texts))
        ]
        # All texts of a call share one length limit. It must not depend on the other texts of the batch.
        limits = {i: self._limit(len(sources[i]) + 1) for i in rows}
        for limit in sorted(set(limits.values())):
            some = [i for i in rows if limits[i] == limit]
            found = self._engine.translate_batch(
                [sources[i] for i in some],
                beam_size=self._search["beam_size"], num_hypotheses=nbest, return_scores=True,
                length_penalty=self._search["alpha"], max_batch_size=BATCH_ROWS, max_decoding_length=limit,
                suppress_sequences=[[self._pieces[PAD]], [self._pieces[BOS]]],
            )  # fmt: skip
            for i, result in zip(some, found):
                ids = [[self._ids[piece] for piece in pieces] for pieces in result.hypotheses]
                decoded = self._tokenizer.decode_outputs([texts[i]] * len(ids), ids)
                outputs[i] = [Output(text, _finite(score)) for text, score in zip(decoded, result.scores)]
        return outputs

    def _limit(self, tokens):
        """Return the maximum number of tokens of a translation, rounded up to a multiple of `LIMITS_APART`."""
        rounded = -(-(tokens + self._search["extra_length"]) // LIMITS_APART) * LIMITS_APART
        return min(rounded, self.max_tokens)


def load_engine(
    path, *, checkpoint=None, precision=None, jit_compile=False, ensemble=(), beam_size=None, alpha=None,
    extra_length=None,
):  # fmt: skip
    """Return the `Engine` of a run directory or an export.

    Args:
        path: The directory.
        checkpoint, precision, jit_compile: See `Translator.load`; only for runs.
        ensemble: Further runs of the same corpus.
        beam_size, alpha, extra_length: Search options; None for the values of the run or export.

    Raises:
        UserError: The directory is neither a run nor an export, it is damaged, or an argument does not apply to it.
    """
    path, search = Path(path), {"beam_size": beam_size, "alpha": alpha, "extra_length": extra_length}
    if not (path / DESCRIPTION).is_file():
        return RunEngine([path, *ensemble], checkpoint, precision or "float32", jit_compile, **search)
    about = read_json(path / DESCRIPTION, f"{path} is not an export", format=str)
    given = {"checkpoint": checkpoint, "precision": precision, "jit_compile": jit_compile, "ensemble": ensemble}
    if about["format"] == "saved_model":
        given |= search
    if wrong := [name for name, value in given.items() if value]:
        raise UserError(f"--{wrong[0]} is for a run, but {path} is an export with fixed values. Omit --{wrong[0]}.")
    if about["format"] == "saved_model":
        return _loaded(SavedModelEngine, path, about)
    if about["format"] == "ctranslate2":
        return _loaded(CTranslate2Engine, path, about, **search)
    raise UserError(
        f"--run must be a run or an export of --format=saved_model or ctranslate2, got --format={about['format']}. "
        "Serve the run that was exported."
    )


def _loaded(engine, path, about, **search):
    try:
        return engine(path, about, **search)
    except (OSError, RuntimeError, ValueError, KeyError, json.JSONDecodeError) as error:
        raise UserError(f"cannot load {path}: {' '.join(str(error).split())}. Export the run again.") from error


def _description(path, about):
    """Return `Engine.about` of an export."""
    models = about.get("models", [about])
    names = ", ".join(one["run"] for one in models if "run" in one)
    return {"model": names or path.name, "problem": models[0].get("problem", "")}


def _finite(score):
    """Return a score for JSON: None instead of the value that stands for −∞."""
    return float(score) if score > -1e8 else None
