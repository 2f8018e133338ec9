"""Version of `WordPieceTokenizer` for exported TensorFlow graphs."""

import tensorflow as tf
import tensorflow_text

from keras_transformer.data.tokenizers.base import SPECIAL, UNK
from keras_transformer.data.tokenizers.word_pieces import ESCAPE, MARKER, UNKNOWN, is_letter
from keras_transformer.exports.graph_tokenizers import LAST_CODE, SPACES, GraphTokenizer, character_class

ESCAPED = r"\\[0-9]{1,7};"
NEVER_SPLIT = 1 << 30  # maximum bytes per word, very large because TensorFlow Text turns longer words into UNK


class GraphWordPieces(GraphTokenizer):
    """Word-piece tokenizer that consists only of TensorFlow operations, without variables or lookup tables.

    Args:
        pieces: List of all pieces. The special tokens come first.
        alphabet: Characters that do not have to be escaped.
    """

    def __init__(self, pieces, alphabet):
        super().__init__()
        letters = character_class(filter(is_letter, alphabet))
        self._run = f"({MARKER}?(?:[{letters}]+|[^{letters}{MARKER}]+))"
        self._known = f"[ {character_class(alphabet)}]"
        self._spaces = f"[{SPACES}]+"
        self._texts = tf.constant([""] * UNK + [UNKNOWN, *pieces[len(SPECIAL) :]])
        self._pieces = tensorflow_text.FastWordpieceTokenizer(
            pieces, suffix_indicator="", max_bytes_per_word=NEVER_SPLIT, token_out_type=tf.int32,
            unknown_token=SPECIAL[UNK], no_pretokenization=True,
        )  # fmt: skip

    def tokenize(self, texts):
        """Encode texts, strings `[batch]`, as ragged int32 ids `[batch, (pieces)]` without BOS and EOS."""
        texts = tf.strings.strip(tf.strings.regex_replace(texts, self._spaces, " "))
        characters, codes = (
            convert(texts, "UTF-8") for convert in (tf.strings.unicode_split, tf.strings.unicode_decode)
        )
        escapes = tf.strings.join([ESCAPE, tf.strings.as_string(codes.flat_values), ";"])
        known = tf.strings.regex_full_match(characters.flat_values, self._known)
        texts = tf.strings.reduce_join(
            characters.with_flat_values(tf.where(known, characters.flat_values, escapes)), axis=-1
        )
        marked = tf.strings.regex_replace(tf.strings.regex_replace(texts, "^.", MARKER + r"\0"), " ", MARKER)
        runs = tf.strings.split(tf.strings.regex_replace(marked, self._run, r"\1 "))
        return self._pieces.tokenize(runs).merge_dims(1, 2)

    def detokenize(self, ids):
        """Decode int32 ids, ragged or `[batch, length]`, into texts, strings `[batch]`."""
        texts = tf.strings.reduce_join(tf.gather(self._texts, ids), axis=-1)
        texts = tf.strings.regex_replace(texts, f"(?:{MARKER}|{self._spaces})+", " ")
        parts = tensorflow_text.regex_split(tf.strings.strip(texts), ESCAPED, ESCAPED)
        flat = parts.flat_values
        escaped = tf.strings.regex_full_match(flat, ESCAPED)
        codes = tf.strings.to_number(tf.where(escaped, tf.strings.regex_replace(flat, r"^\\|;$", ""), "0"), tf.int32)
        characters = tf.strings.unicode_encode(tf.minimum(codes, LAST_CODE)[:, tf.newaxis], "UTF-8")
        # A model may output escapes of invalid characters or of white space, which the tokenizer never produces.
        real = escaped & (codes <= LAST_CODE) & ((codes < 0xD800) | (codes > 0xDFFF))
        real &= ~tf.strings.regex_full_match(characters, self._spaces)
        return tf.strings.reduce_join(parts.with_flat_values(tf.where(real, characters, flat)), axis=-1)
