"""Tokenizers for exported TensorFlow graphs. They return the same ids and texts as the Python tokenizers."""

import tensorflow as tf

from keras_transformer.data.tokenizers.base import BOS, EOS, PAD, SPECIAL, UNK
from keras_transformer.utils.errors import UserError

try:
    import tensorflow_text
except (ImportError, tf.errors.NotFoundError) as error:  # NotFoundError: incompatible versions
    raise UserError(
        f"a SavedModel needs a version of TensorFlow Text that matches TensorFlow {tf.__version__}; run "
        f"pip install 'tensorflow-text>={tf.__version__}' ({str(error).splitlines()[0]})"
    ) from None

LAST_CODE = 0x10FFFF
BLANK = r" \t\n\r\f\v"
"""Characters that separate the words of a sentence to parse. A no-break space does not separate words."""


def character_class(characters):
    """Return the contents of an RE2 character class that matches any of the characters."""
    codes, ranges = sorted(map(ord, characters)), []
    for code in codes:
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in ranges)


SPACES = character_class(char for char in map(chr, range(LAST_CODE + 1)) if char.isspace())
"""Contents of a character class that matches the same white space as `str.split()`."""


def split_words(texts):
    """Split texts into words like `utils.text.split_words`. Return ragged strings `[batch, (words)]`."""
    texts = tf.strings.strip(tf.strings.regex_replace(texts, f"[{BLANK}]+", " "))
    words = tf.strings.split(texts, " ")
    return tf.ragged.boolean_mask(words, words != "")


def checked(right, message, *tensors):
    """Return the tensors unchanged, but add a check that all values of the bool tensor `right` are true.

    Raises:
        InvalidArgumentError: A value is false. The error occurs when the graph runs.
    """
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(right), [message])]):
        return [tf.identity(tensor) for tensor in tensors]


def without_special(ids):
    """Remove PAD, BOS and EOS from ids, int32 `[batch, length]`. Return ragged ids `[batch, (ids)]`."""
    return tf.ragged.boolean_mask(ids, (ids != PAD) & (ids != BOS) & (ids != EOS))


class GraphTokenizer(tf.Module):
    """Base class of tokenizers in TensorFlow graphs. Texts are UTF-8 strings. Ids do not include PAD, BOS or EOS."""

    def tokenize(self, texts):
        """Encode texts, strings `[batch]`, as ragged int32 ids `[batch, (ids)]`."""
        raise NotImplementedError

    def tokenize_targets(self, texts):
        """Encode targets, by default in the same way as sources."""
        return self.tokenize(texts)

    def detokenize(self, ids):
        """Decode ragged ids into texts, strings `[batch]`."""
        raise NotImplementedError

    def decode_outputs(self, sources, ids):
        """Decode the ragged ids that a model outputs for the texts `sources`, strings `[batch]`."""
        return self.detokenize(ids)


class GraphSentencePiece(GraphTokenizer):
    """Graph tokenizer for a SentencePiece model.

    Args:
        model: Bytes of the model file, which become part of the graph.
    """

    def __init__(self, model):
        super().__init__()
        self._pieces = tensorflow_text.SentencepieceTokenizer(model=model, out_type=tf.int32)

    def tokenize(self, texts):
        return self._pieces.tokenize(texts)

    def detokenize(self, ids):
        return self._pieces.detokenize(ids)


# `language_tags.LANGUAGE_CODE` without \s, which matches only ASCII characters in TensorFlow's regular expressions.
LANGUAGE_CODE = f"[{SPACES}]*(>>[^{SPACES}<>]+<<)"


class GraphMarian(GraphTokenizer):
    """Graph version of `MarianTokenizer`, which has two SentencePiece models and one vocabulary.

    Args:
        pieces: List of all pieces, indexed by id.
        source_model, target_model: Bytes of the SentencePiece models, which become part of the graph.
    """

    def __init__(self, pieces, source_model, target_model):
        super().__init__()
        self._source, self._target = (
            # If both tokenizers had the same name, a loaded SavedModel would use one model for both sides.
            tensorflow_text.SentencepieceTokenizer(model=model, out_type=tf.string, name=name)
            for name, model in (("source", source_model), ("target", target_model))
        )
        own = range(len(SPECIAL), len(pieces))
        self._pieces, self._ids = tf.constant(pieces), symbol_table([pieces[i] for i in own], own)

    def tokenize(self, texts):
        begins = tf.strings.regex_full_match(texts, f"{LANGUAGE_CODE}(.|\n)*")
        code = tf.strings.regex_replace(texts, f"^{LANGUAGE_CODE}(.|\n)*", "\\1")
        begins &= self._ids.lookup(code) != UNK
        rest = tf.where(begins, tf.strings.regex_replace(texts, f"^{LANGUAGE_CODE}", "", replace_global=False), texts)
        codes = tf.ragged.boolean_mask(code[:, None], begins[:, None])
        return tf.cast(self._ids.lookup(tf.concat([codes, self._source.tokenize(rest)], axis=1)), tf.int32)

    def tokenize_targets(self, texts):
        return self._ids.lookup(self._target.tokenize(texts))

    def detokenize(self, ids):
        return self._target.detokenize(tf.gather(self._pieces, ids))


class GraphSymbols(GraphTokenizer):
    """Graph tokenizer that splits texts at white space and maps each symbol to one id.

    Args:
        symbols: List of all symbols, indexed by id.
    """

    def __init__(self, symbols):
        super().__init__()
        own = range(len(SPECIAL), len(symbols))
        self._symbols, self._ids = tf.constant(symbols), symbol_table([symbols[i] for i in own], own)

    def tokenize(self, texts):
        return self._ids.lookup(tf.strings.split(tf.strings.regex_replace(texts, f"[{SPACES}]+", " ")))

    def detokenize(self, ids):
        return tf.strings.reduce_join(tf.gather(self._symbols, ids), axis=-1, separator=" ")


def symbol_table(symbols, ids):
    """Return a lookup table that maps the given symbols to their ids, and any other symbol to UNK."""
    entries = tf.lookup.KeyValueTensorInitializer(list(symbols), list(ids), tf.string, tf.int32)
    return tf.lookup.StaticHashTable(entries, UNK)
