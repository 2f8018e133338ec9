"""Export of a SavedModel whose TensorFlow graph contains the tokenizer, the model and the beam search."""

import functools
import os

import keras
import tensorflow as tf

from keras_transformer.data.tokenizers.base import BOS, EOS, PAD
from keras_transformer.data.tokenizers.marian import MarianTokenizer
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.data.tokenizers.word_pieces import WordPieceTokenizer
from keras_transformer.decoding.beam_search import SearchInputs, length_penalty
from keras_transformer.decoding.search_options import SearchOptions
from keras_transformer.decoding.token_selection import NEG_INF
from keras_transformer.decoding.translator import Translator
from keras_transformer.exports.description import atomic_export
from keras_transformer.exports.graph_search import GraphBeamSearch
from keras_transformer.exports.graph_tokenizers import (
    GraphMarian,
    GraphSentencePiece,
    GraphSymbols,
    checked,
    split_words,
    without_special,
)
from keras_transformer.exports.graph_trees import GraphTrees
from keras_transformer.exports.graph_word_pieces import GraphWordPieces
from keras_transformer.parsing.tokenizer import TreeTokenizer
from keras_transformer.utils.errors import UserError

MAX_BEAMS = 8
"""Default of `max_beam_size`."""
FIXED = ("beam_size", "alpha", "nbest", "extra_length", "max_source_length")
"""Search options that are constants of the exported graph. `export.json` lists their values."""
PLACEHOLDERS = {tf.string: "", tf.int32: 1, tf.float32: 1.0}
"""Values in the row that `_allow_empty` adds to an empty batch, {dtype: value}."""


def export_saved_model(
    translator: Translator, folder: str | os.PathLike, options: SearchOptions | None = None, *,
    max_beam_size: int | None = None, description: dict | None = None, force: bool = False,
) -> None:  # fmt: skip
    """Write a SavedModel that TensorFlow and TensorFlow Text can load without this package.

    Texts are UTF-8 strings, in which invalid bytes become U+FFFD. The SavedModel has these signatures:

    - `serving_default` translates `inputs`, strings `[batch]`. It returns `outputs`, the best translations, strings
      `[batch]`, and `nbest`, all translations, strings `[batch, nbest]`. It also returns `scores`, float32
      `[batch, nbest]`, and `tokens`, int32 `[batch, nbest, length]`. Each row of `tokens` ends in EOS and is padded
      with PAD. Missing translations are "" with a score of −1e9. The translation of a blank text is "" with a score of
      0 and no tokens.
    - `translate_with_options` does the same as `serving_default`, with the additional inputs `beam_size` and `nbest`,
      int32, and `alpha`, float32. Each of these inputs contains one value for all texts, `[1]`, or one value per text,
      `[batch]`.
    - `translate_ids` takes `ids`, int32 `[batch, length]`, padded with PAD, and returns `scores` and `tokens`. `ids`
      may contain BOS and EOS.
    - `score_pairs` takes `inputs` and `targets`, strings `[batch]`. It returns `log_probabilities` and `scores`,
      `[batch]`, and `tokens` and `token_log_probabilities`, `[batch, length]`. Log-probabilities after EOS are 0.

    Args:
        translator: `Translator`.
        folder: New directory, which appears only when it is complete.
        options: `SearchOptions`, which become constants of the graph. Only `translate_with_options` takes `beam_size`,
            `alpha` and `nbest` as inputs. `sampling`, `constraint`, `min_length`, `no_repeat_ngram` and
            `repetition_penalty` must have their default values.
        max_beam_size: Maximum `beam_size` of `translate_with_options` (default: the larger of `MAX_BEAMS` and
            `beam_size`). A larger maximum makes this signature slower for all beam sizes.
        description: Additional contents of `export.json`.
        force: Whether to replace an existing export.

    Raises:
        UserError: An option is out of range or not supported, the tokenizer cannot be part of a graph, the Keras
            backend is not TensorFlow, or the directory exists or cannot be written.
    """
    if keras.backend.backend() != "tensorflow":
        raise UserError(
            f"the backend for a SavedModel must be tensorflow, got {keras.backend.backend()}. "
            "Set KERAS_BACKEND=tensorflow, which can load runs trained with any backend."
        )
    options = options or SearchOptions()
    for name in options.changed("min_length", "no_repeat_ngram", "repetition_penalty", "sampling", "constraint"):
        raise UserError(f"{name} must be {getattr(SearchOptions, name)!r} for a SavedModel. Omit it.")
    options = options.complete(translator.hparams, translator.constraint)
    fixed = {name: getattr(options, name) for name in FIXED}
    max_beam_size = max(MAX_BEAMS, fixed["beam_size"]) if max_beam_size is None else max_beam_size
    if fixed["beam_size"] > max_beam_size:
        raise UserError(
            f"beam_size must be at most max_beam_size={max_beam_size}, got {fixed['beam_size']}. Raise max_beam_size."
        )
    description = {
        "tokenizer_sha256": translator.tokenizer.fingerprint, "format": "saved_model", "tensorflow": tf.__version__,
        "trees": translator.constraint is not None, "tags": dict(translator.tokenizer.tags),
        "placeholders": len(translator.tokenizer.placeholders), **fixed,
        "max_beam_size": max_beam_size, **(description or {}),
    }  # fmt: skip
    with atomic_export(folder, force, description) as new:
        module = TextTranslator(translator, options, max_beam_size)
        tf.saved_model.save(module, str(new), signatures=module.concrete_functions())


class TextTranslator(tf.Module):
    """The exported module. Its public methods are the signatures that `export_saved_model` describes."""

    def __init__(self, translator, options, max_beam_size):
        super().__init__()
        self._options, self._max_beam_size = options, max_beam_size
        self._text, self._vocab_size = graph_tokenizer(translator.tokenizer), translator.tokenizer.vocab_size
        self._constraint, self._score_batch = translator.constraint, translator.score_batch
        self._search = GraphBeamSearch(translator.models).search
        if self._constraint:
            self._word_starts = tf.constant(translator.tokenizer.word_starts)
        # The signatures share `translated`. The lambda hides this function from `tf.saved_model.save`, which would
        # otherwise store it twice.
        translated = tf.function(self._translated_batch, autograph=False)
        self._translated = lambda *arguments: translated(*arguments)
        # The SavedModel stores only the variables that this module tracks.
        self._weights = [variable.value for model in translator.models for variable in model.weights]

    def concrete_functions(self):
        """Return the signatures, {name: concrete function}."""

        def argument(name, kind, *shape):
            return tf.TensorSpec([None, *shape], kind, name)

        texts = argument("inputs", tf.string)
        numbers = [argument("beam_size", tf.int32), argument("alpha", tf.float32), argument("nbest", tf.int32)]
        arguments = {
            self.serving_default: [texts],
            self.translate_with_options: [texts, *numbers],
            self.translate_ids: [argument("ids", tf.int32, None)],
            self.score_pairs: [texts, argument("targets", tf.string)],
        }
        return {
            method.__name__: tf.function(_allow_empty(method), autograph=False).get_concrete_function(*specification)
            for method, specification in arguments.items()
        }

    def serving_default(self, inputs):
        texts = well_formed(inputs)
        source = self._source(self._text.tokenize(texts))
        return self._with_texts(texts, *self._translated(source, self._words(texts), *self._fixed(texts)))

    def translate_with_options(self, inputs, beam_size, alpha, nbest):
        texts = well_formed(inputs)
        numbers = beam_size, alpha, nbest
        sizes = tf.stack([tf.size(values) for values in numbers])
        message = "each option must be one number for all texts or one number per text"
        numbers = checked((sizes == 1) | (sizes == tf.size(texts)), message, *numbers)
        beams, alphas, nbest = (tf.broadcast_to(values, tf.shape(texts)) for values in numbers)
        right = (nbest >= 1) & (nbest <= beams) & (beams <= self._max_beam_size) & (alphas >= 0.0)
        message = f"beam_size must be from 1 to {self._max_beam_size}, nbest from 1 to beam_size, and alpha at least 0"
        beams, alphas, nbest = checked(right, message, beams, alphas, nbest)
        source = self._source(self._text.tokenize(texts))
        translated = self._translated(source, self._words(texts), self._max_beam_size, beams, alphas, nbest)
        return self._with_texts(texts, *translated)

    def translate_ids(self, ids):
        (ids,) = checked((ids >= 0) & (ids < self._vocab_size), f"ids must be from 0 to {self._vocab_size - 1}", ids)
        words = tf.zeros(tf.shape(ids)[:1], tf.int32)
        if self._constraint:
            starts = tf.where((ids == PAD) | (ids == EOS) | (ids == BOS), 0.0, tf.gather(self._word_starts, ids))
            words = tf.cast(tf.reduce_sum(starts, axis=1), tf.int32)
        tokens, scores = self._translated(self._source(without_special(ids)), words, *self._fixed(words))
        return {"tokens": tokens, "scores": scores}

    def score_pairs(self, inputs, targets):
        same = tf.size(inputs) == tf.size(targets)
        inputs, targets = checked(same, "the number of targets must equal the number of inputs", inputs, targets)
        source = _padded(self._text.tokenize(well_formed(inputs)))
        labels = _padded(self._text.tokenize_targets(well_formed(targets)))
        log_p = tf.where(labels != PAD, self._score_batch(source, labels)[0], 0.0)
        total = tf.reduce_sum(log_p, axis=1)
        return {
            "log_probabilities": total,
            "scores": total / length_penalty(_lengths(labels), self._options.alpha),
            "tokens": labels,
            "token_log_probabilities": log_p,
        }

    def _fixed(self, rows):
        """Return `beam_size`, `beams`, `alphas` and `nbest` for `_translated_batch`, with the values of the options."""
        numbers = (self._options.beam_size, self._options.alpha, self._options.nbest)
        return self._options.beam_size, *(tf.fill(tf.shape(rows), number) for number in numbers)

    def _source(self, ids):
        """Convert ragged ids to the encoder's input, int32 `[batch, length]`, and truncate texts that are too long."""
        if (longest := self._options.max_source_length) is not None:
            # A parser skips sentences that are too long instead of truncating them.
            kept = 0 if self._constraint else longest - 1
            lengths = ids.row_lengths()
            lengths = tf.where(lengths < longest, lengths, kept)
            ids = tf.RaggedTensor.from_tensor(ids.to_tensor(), lengths=lengths)
        return _padded(ids)

    def _words(self, texts):
        """Return the number of words in each text, int32 `[batch]`, or zeros if the search has no constraint."""
        if not self._constraint:
            return tf.zeros_like(texts, tf.int32)
        return tf.cast(split_words(texts).row_lengths(), tf.int32)

    def _translated_batch(self, source, words, beam_size, beams, alphas, nbest):
        """Return the tokens, int32 `[batch, n, length]`, and scores, `[batch, n]`, where n is the maximum `nbest`."""
        lengths = _lengths(source)
        searched = lengths > 1
        batch = tf.shape(source)[0]
        inputs = SearchInputs(
            limits=tf.where(searched, lengths + self._options.extra_length, 1), prefix=tf.fill([batch, 1], PAD),
            chances=tf.zeros([batch, 0, 0]), words=words, alphas=alphas, beams=beams, nbest=nbest,
        )  # fmt: skip
        tokens, _, scores = self._search(source, inputs, SearchOptions(beam_size, constraint=self._constraint))
        column = tf.range(tf.reduce_max(tf.concat([nbest, [1]], axis=0)))[None]
        tokens, scores = tokens[:, : tf.size(column)], scores[:, : tf.size(column)]
        found = searched[:, None] & (column < nbest[:, None]) & (scores > NEG_INF / 2)
        tokens = tf.where(found[:, :, None], tokens, PAD)
        # Blank texts score 0. Sentences that were not parsed score NEG_INF, because JSON cannot represent −∞.
        blank = ~searched[:, None] & (words == 0)[:, None] & (column == 0)
        longest = tf.reduce_max(tf.concat([_lengths(tokens), tf.zeros([1, tf.size(column)], tf.int32)], axis=0))
        return tokens[:, :, :longest], tf.where(found, scores, tf.where(blank, 0.0, NEG_INF))

    def _with_texts(self, sources, tokens, scores):
        """Decode the tokens. Return the outputs of a signature: texts, scores and tokens."""
        batch, columns, length = tf.unstack(tf.shape(tokens))
        ids = without_special(tf.reshape(tokens, [-1, length]))
        texts = tf.reshape(self._text.decode_outputs(tf.repeat(sources, columns), ids), [batch, columns])
        # For a sentence that the search skipped, a parser's best output is a flat tree. All other missing texts are "".
        texts = tf.where((scores > NEG_INF) | (tf.range(columns) == 0), texts, "")
        return {"outputs": texts[:, 0], "nbest": texts, "scores": scores, "tokens": tokens}


def well_formed(texts):
    """Replace invalid UTF-8 bytes in strings `[batch]` with U+FFFD."""
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


def _allow_empty(signature):
    """Wrap a signature so that it accepts empty batches. The wrapper adds a row and removes it from the outputs."""

    @functools.wraps(signature)
    def extended(*arguments):
        batch = tf.shape(arguments[0])[0]

        def filled(rows):
            missing = tf.where(batch == 0, tf.maximum(1 - tf.shape(rows)[:1], 0), 0)
            placeholder = tf.fill(tf.concat([missing, tf.shape(rows)[1:]], 0), PLACEHOLDERS[rows.dtype])
            return tf.concat([rows, placeholder], 0)

        return {name: rows[:batch] for name, rows in signature(*map(filled, arguments)).items()}

    return extended


def _padded(ids):
    """Append EOS to each row of ragged ids, and pad the rows with PAD to int32 `[batch, length]`."""
    return tf.concat([ids, tf.fill([ids.nrows(), 1], EOS)], axis=1).to_tensor(PAD)


def _lengths(ids):
    """Return the number of ids along the last axis that are not PAD, int32 `[…]`."""
    return tf.reduce_sum(tf.cast(ids != PAD, tf.int32), axis=-1)


def graph_tokenizer(tokenizer):
    """Return a `GraphTokenizer` that is equivalent to a `Tokenizer`.

    A plug-in's tokenizer can provide its graph version with a method `graph_tokenizer()`.

    Raises:
        UserError: The tokenizer has no graph version.
    """
    if hasattr(tokenizer, "graph_tokenizer"):
        return tokenizer.graph_tokenizer()
    if isinstance(tokenizer, TreeTokenizer):
        return GraphTrees(tokenizer)
    if isinstance(tokenizer, SentencePieceTokenizer):
        return GraphSentencePiece(tokenizer.to_bytes())
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    if isinstance(tokenizer, MarianTokenizer):
        return GraphMarian(pieces, *tokenizer.models)
    if isinstance(tokenizer, SymbolTokenizer):
        return GraphSymbols(pieces)
    if isinstance(tokenizer, WordPieceTokenizer):
        return GraphWordPieces(pieces, tokenizer.alphabet)
    raise UserError(
        f"a SavedModel does not support {type(tokenizer).__name__}, which has no method graph_tokenizer(). "
        "Export with --format=keras."
    )
