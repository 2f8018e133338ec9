"""Inference engines of the server, for runs, SavedModel exports and CTranslate2 exports."""

import abc
import functools
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from keras_transformer.backend.loading import BACKENDS, check_packages, load_keras
from keras_transformer.data.language_tags import leading_tag, tag_texts
from keras_transformer.data.placeholders import hide_spans, show_spans
from keras_transformer.decoding.ctranslate2_translator import CTranslate2Translator
from keras_transformer.decoding.loading import load_translator
from keras_transformer.decoding.search_options import SearchOptions
from keras_transformer.exports.description import DESCRIPTION
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import read_json

BATCH_ROWS = 64
"""Maximum number of texts per call to an engine."""


class Output(NamedTuple):
    """One translation.

    Attributes:
        text: The translation, or the bracketed tree of a parser.
        score: Score of the translation, or None if a parser skipped the sentence.
    """

    text: str
    score: float | None


class Engine(abc.ABC):
    """Base class of engines. At most `workers` threads call `translate` at a time, and only one calls `attention`.

    Attributes:
        name: Name of the library that translates.
        about: Description of the model, {name: value}, for JSON.
        max_nbest: Maximum number of translations of a text.
        max_tokens: Maximum number of tokens of a text, including EOS; None if the engine itself truncates long texts.
        trees: Whether translations are bracketed trees.
        shows_attention: Whether the engine supports `attention`.
        tags: {target language: tag} of a multilingual model, otherwise empty (see `Tokenizer.tags`).
        placeholders: Number of placeholders in the vocabulary (see `data.placeholders`).
        workers: Number of threads that may call `translate` at the same time.
    """

    name: str
    about: dict[str, Any]
    max_nbest: int
    max_tokens: int | None = None
    trees = False
    shows_attention = False
    tags: Mapping[str, str] = MappingProxyType({})
    placeholders = 0
    workers = 1

    @property
    def input_language(self) -> str | None:
        """Code of the source language, or None if unknown."""
        return None

    @abc.abstractmethod
    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, including EOS. Any thread may call this method.

        Raises:
            TextError: A text has too many marked spans (see `data.placeholders`).
        """

    @abc.abstractmethod
    def translate(self, texts: Sequence[str], nbest: int) -> list[list[Output]]:
        """Return up to `nbest` outputs for each text, best first.

        Raises:
            UserError: A text cannot be translated.
        """

    def source_prefix(self, text: str) -> str:
        """Return the language tag at the beginning of a text, with the spaces around it, or "" without a tag."""
        return leading_tag(text, self.tags)

    def warm_up(self) -> None:
        """Compile the search, so that the first requests do not have to wait."""
        language = next(iter(self.tags), None)
        self.translate(tag_texts(["."] * 2, language, self.tags), 1)

    def attention(self, source: str, target: str) -> dict[str, Any]:
        """Return the attention weights of a translation as a dict for JSON, in the format of `attention_view.js`.

        Raises:
            UserError: The engine does not support attention maps.
        """
        raise UserError("an export has no attention maps. Serve a run instead.")


class TranslatorEngine(Engine):
    """Base class of engines that use a `BaseTranslator`.

    Args:
        translator: The translator.
        max_tokens: See `Engine`.
        search: Search options, see `load_engine`.
    """

    def __init__(self, translator, max_tokens, **search):
        self._translator, self.max_tokens, self._search = translator, max_tokens, search
        self.max_nbest = SearchOptions(**search).complete(translator.hparams, translator.constraint).beam_size
        self.trees = translator.tokenizer.constraint is not None
        self.tags = translator.tokenizer.tags
        self.placeholders = len(translator.tokenizer.placeholders)
        self.workers = 1 if translator.engine == "keras" else 2

    def warm_up(self):
        self._translator.compile_ahead(**self._search)
        super().warm_up()

    def lengths(self, texts):
        hidden, _ = self._translator.hide_spans(texts)
        return [len(ids) + 1 for ids in self._translator.tokenizer.encode(hidden)]

    def translate(self, texts, nbest):
        found = self._translator.translate(texts, nbest=nbest, max_source_length=self.max_tokens, **self._search)
        return [[Output(one.text, _json_score(one.score)) for one in hypotheses] for hypotheses in found]


class RunEngine(TranslatorEngine):
    """Engine for one run directory, or for several run directories as an ensemble.

    With CTranslate2, the engine loads Keras only when it computes the first attention map.

    Args:
        paths: List of run directories.
        checkpoint, precision, jit_compile: See `Translator.load`.
        engine: See `choose_engine`.
        search: See `TranslatorEngine`.
    """

    def __init__(self, paths, checkpoint=None, precision="float32", jit_compile=False, engine="keras", **search):
        runs = [Run.open(path) for path in paths]
        self._run, self._arguments = runs[0], (runs, checkpoint, precision, jit_compile)
        translator = load_translator(*self._arguments, engine=engine, options=SearchOptions(**search))
        hparams = translator.hparams
        super().__init__(translator, hparams.max_length, **search)
        self.name = translator.engine
        has_keras = self.name == "keras" or any(map(importlib.util.find_spec, BACKENDS))
        self.shows_attention = not self.trees and hparams.encoder_attention == "full" and has_keras
        names = [Path(path).resolve().name for path in paths]
        self.about = {"model": ", ".join(names), "problem": self._run.config["problem"]["name"]}

    @property
    def input_language(self):
        return self._run.input_language

    @functools.cached_property
    def _attention_translator(self):
        return self._translator if self.name == "keras" else load_translator(*self._arguments, engine="keras")

    def attention(self, source, target):
        translator = self._attention_translator
        from keras_transformer.visualization.attention import view_data

        return view_data(translator.attention(source, target))


class SavedModelEngine(Engine):
    """Engine for an export with `--format=saved_model`, which runs in TensorFlow."""

    name = "tensorflow"

    def __init__(self, path, about):
        check_packages(f"{path}, a SavedModel,", "tensorflow", ("tensorflow", "tensorflow-text"))
        os.environ["KERAS_BACKEND"] = "tensorflow"  # JAX cannot load a SavedModel
        load_keras()
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  registers operations of the graph

        self._tf, self._model = tf, tf.saved_model.load(str(path))
        self._signature = self._model.signatures["serving_default"]
        self.max_nbest = about["nbest"]
        self.trees = about.get("trees", False)
        self.tags = about.get("tags", {})
        self.placeholders = about.get("placeholders", 0)
        self.about = _description(path, about)

    def lengths(self, texts):
        """Estimate the number of tokens from the number of bytes, because the graph does not output token counts."""
        return [len(text.encode()) // 4 + 2 for text in texts]

    def translate(self, texts, nbest):
        texts, spans = hide_spans(texts, self.placeholders)
        found = self._signature(inputs=self._tf.constant([text.encode() for text in texts], self._tf.string))
        outputs = []
        for row, scores, hidden in zip(found["nbest"].numpy(), found["scores"].numpy(), spans):
            shown = [show_spans(text.decode(), hidden) if self.placeholders else text.decode() for text in row[:nbest]]
            several = [Output(text, _json_score(score)) for text, score in zip(shown, scores)]
            outputs.append(several[:1] + [one for one in several[1:] if one.score is not None])
        return outputs


class CTranslate2Engine(TranslatorEngine):
    """Engine for an export with `--format=ctranslate2`."""

    name = "ctranslate2"

    def __init__(self, path, about, **search):
        super().__init__(CTranslate2Translator.from_export(path, about), about["max_tokens"], **search)
        # CTranslate2 does not support a parser's constraint. The tokenizer repairs incomplete trees.
        self._search["constraint"] = None
        self.about = _description(path, about)


def load_engine(path, *, checkpoint=None, precision=None, jit_compile=False, ensemble=(), engine="auto", **search):
    """Return the `Engine` of a run directory or an export.

    Args:
        path: The directory.
        checkpoint, precision, jit_compile: See `Translator.load`; only for runs.
        ensemble: List of further runs with the same vocabulary.
        engine: See `choose_engine`; only for runs.
        search: `beam_size`, `alpha` and `extra_length`, and for runs also `no_repeat_ngram` and `repetition_penalty`;
            None for the values of the run or export.

    Raises:
        UserError: The directory is neither a run nor an export, it is damaged, or an argument does not apply to it.
    """
    path, search = Path(path), {name: value for name, value in search.items() if value is not None}
    if not (path / DESCRIPTION).is_file():
        return RunEngine([path, *ensemble], checkpoint, precision or "float32", jit_compile, engine, **search)
    about = read_json(path / DESCRIPTION, f"{path} is not an export", format=str, files=list)
    given = {
        "checkpoint": checkpoint, "precision": precision, "jit_compile": jit_compile is True, "ensemble": ensemble,
        "engine": engine != "auto",
    }  # fmt: skip
    wrong = [name for name, value in given.items() if value]
    wrong += search if about["format"] == "saved_model" else SearchOptions(**search).against_repetition
    if wrong:
        raise UserError(
            f"--{wrong[0]} needs a run, but {path} is an export, in which this setting is fixed. Omit the flag."
        )
    if about["format"] == "saved_model":
        return _loaded(SavedModelEngine, path, about)
    if about["format"] == "ctranslate2":
        return _loaded(CTranslate2Engine, path, about, **search)
    raise UserError(
        "--run must be a run, or an export with --format=saved_model or ctranslate2, got an export with "
        f"--format={about['format']}. Serve the run that was exported."
    )


def _loaded(engine, path, about, **search):
    try:
        return engine(path, about, **search)
    except (OSError, RuntimeError, ValueError, KeyError, json.JSONDecodeError) as error:
        raise UserError(f"cannot load {path}: {' '.join(str(error).split())}. Export the run again.") from error


def _description(path, about):
    """Return the description of an export for `Engine.about`."""
    models = about.get("models", [about])
    names = ", ".join(one["run"] for one in models if "run" in one)
    return {"model": names or path.name, "problem": models[0].get("problem", "")}


def _json_score(score):
    """Return a score for JSON: None for −∞, which exports store as −1e9."""
    return float(score) if score > -1e8 else None
