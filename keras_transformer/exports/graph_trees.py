"""Version of `TreeTokenizer` for exported TensorFlow graphs."""

import re
import sys
import unicodedata

import tensorflow as tf
import tensorflow_text

from keras_transformer.exports.graph_tokenizers import (
    BLANK,
    GraphSentencePiece,
    character_class,
    checked,
    split_words,
    symbol_table,
)
from keras_transformer.parsing.linearize import ANY_TAG, is_bracket
from keras_transformer.parsing.tokenizer import ALIKE, AROUND
from keras_transformer.parsing.tokenizer import OPEN as MARK  # marks tags while a tree is tokenized
from keras_transformer.parsing.tree import ESCAPED, ESCAPES

TAGGED = rf"\([{BLANK}]*([^{BLANK}()]+)[{BLANK}]+[^{BLANK}()]+[{BLANK}]*\)"
"""Pattern that matches a bracketed tag and its word, such as (NN dog)."""
INVISIBLE = character_class(
    char
    for char in map(chr, range(sys.maxunicode + 1))
    if char in "▁\ufffd" or unicodedata.category(char) != "Cs" and unicodedata.category(char)[0] in "ZC"
)


class GraphTrees(GraphSentencePiece):
    """Graph tokenizer that encodes sentences as subwords and trees as symbols, and decodes symbols into trees.

    Args:
        tokenizer: `TreeTokenizer`.
    """

    def __init__(self, tokenizer):
        super().__init__(tokenizer.to_bytes())
        symbols, ids = zip(*tokenizer.symbols.items())
        self._ids, self._tag = symbol_table(symbols, ids), r"\1" if tokenizer.tagged else ANY_TAG
        texts, is_tag = [""] * tokenizer.vocab_size, [False] * tokenizer.vocab_size
        for symbol, i in tokenizer.symbols.items():
            is_tag[i] = not is_bracket(symbol)
            texts[i] = f" ({symbol} " if is_tag[i] else f" {symbol}" if symbol[0] == "(" else ")"
        self._texts, self._is_tag = tf.constant(texts), tf.constant(is_tag)

    def tokenize(self, texts):
        words = split_words(_replaced(texts, AROUND))
        flat = _replaced(words.flat_values, ESCAPES | {"\\/": "/"})
        for word, plain in ALIKE.items():
            flat = tf.where(flat == word, plain, flat)
        flat = tf.strings.regex_replace(tensorflow_text.normalize_utf8(flat, "NFKC"), f"[{INVISIBLE}]", "")
        plain = words.with_flat_values(tf.where(flat == "", "?", flat))
        return super().tokenize(tf.strings.reduce_join(plain, axis=-1, separator=" "))

    def tokenize_targets(self, texts):
        """Return the ids of bracketed trees. An empty text has no ids.

        Raises:
            InvalidArgumentError: A text is not exactly one constituency tree. The error occurs when the graph runs.
        """
        texts = tf.strings.regex_replace(texts, MARK, "")
        texts = tf.strings.regex_replace(texts, TAGGED, f" {MARK}{self._tag} ")
        texts = tf.strings.regex_replace(texts, rf"\([{BLANK}]*([^{BLANK}()]*)", r" (\1 ")
        symbols = split_words(tf.strings.regex_replace(texts, r"\)", " ) ")).to_tensor()
        given, opens, closes = symbols != "", tf.strings.regex_full_match(symbols, r"\(.*"), symbols == ")"
        tags = tf.strings.regex_full_match(symbols, f"{MARK}.*")
        change = tf.cast(opens, tf.int32) - tf.cast(closes, tf.int32)
        depths = tf.cumsum(change, axis=1)
        # The outermost bracket must close only at the end, each word must have a tag, and no bracket may be empty.
        last = given & tf.concat([~given[:, 1:], tf.ones_like(given[:, :1])], axis=1)[:, : tf.shape(given)[1]]
        whole = ~given | ((depths > 0) & ~last) | ((depths == 0) & last & closes)
        empty = opens[:, :-1] & closes[:, 1:]
        right = tf.reduce_all(whole & (~given | opens | closes | tags)) & ~tf.reduce_any(empty)
        message = "a target must be one constituency tree, such as (S (NP (PRP it)) (VP (VBZ works)))"
        symbols, opens, depths = checked(right, message, symbols, opens, depths)
        # A closing bracket matches the last preceding opening bracket at the same depth.
        place = tf.range(tf.shape(symbols)[1])
        led = opens[:, None] & (depths[:, None] == depths[:, :, None] + 1) & (place < place[:, None])
        opener = tf.reduce_max(tf.where(led, place, 0), axis=2)
        closing = tf.strings.regex_replace(tf.gather(symbols, opener, batch_dims=1), r"^\(", ")")
        names = tf.strings.regex_replace(tf.where(closes, closing, symbols), MARK, "")
        return tf.ragged.boolean_mask(self._ids.lookup(names), given)

    def decode_outputs(self, sources, ids):
        """Decode the ragged ids of complete trees into bracketed trees.

        A row without ids becomes a flat tree of the words in its source.
        """
        words = split_words(sources)
        words = words.with_flat_values(_replaced(words.flat_values, ESCAPED))
        flat = tf.strings.join(["(TOP", tf.strings.reduce_join(_leaves(words), axis=-1), ")"])
        flat = tf.where(words.row_lengths() > 0, flat, "")
        symbols = ids.to_tensor()
        is_tag = tf.gather(self._is_tag, symbols)
        number = tf.cumsum(tf.cast(is_tag, tf.int32), axis=1, exclusive=True)
        leaves = tf.strings.join([tf.pad(words.to_tensor(), [(0, 0), (0, 1)], constant_values=""), ")"])
        number = tf.minimum(number, tf.shape(leaves)[1] - 1)
        leaves = tf.where(is_tag, tf.gather(leaves, number, batch_dims=1), "")
        trees = tf.strings.strip(tf.strings.reduce_join(tf.gather(self._texts, symbols) + leaves, axis=-1))
        return tf.where(ids.row_lengths() > 0, trees, flat)


def _leaves(words):
    return tf.ragged.map_flat_values(lambda flat: tf.strings.join([f" ({ANY_TAG} ", flat, ")"]), words)


def _replaced(texts, replacements):
    """Replace each key of `replacements` in the texts with its value, one key after the other."""
    for old, new in replacements.items():
        texts = tf.strings.regex_replace(texts, re.escape(old), new)
    return texts
