"""Text to token ids and back. The tokenizer travels with the model: it is one file of the run directory."""

import functools
import hashlib
import io
import random
import re
import sys
from pathlib import Path

import numpy as np

from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import written

PAD, EOS, BOS, UNK = 0, 1, 2, 3
SPECIAL = ("<pad>", "</s>", "<s>", "<unk>")
CHANGE = "change it with --set problem.vocab_size=N"
LONGEST = 2**30
"""Bytes of a sentence that a vocabulary is learned from; SentencePiece leaves those beyond 4,192 out by default."""
LONG_WORD = re.compile(r"(\S{10000})")
"""Words are cut there to learn from: SentencePiece has counted a word's characters in 16 bits, and ended beyond."""
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u30ff\u31f0-\u31ff\u3400-\u9fff"
    "\uf900-\ufaff\uff01-\uff0f\uff1a-\uff1f\uff66-\uff9f\U00020000-\U0003ffff]"
)
"""A character of a script without spaces between words: Thai, Lao, Myanmar, Khmer, kana, Han, and their punctuation."""


class Tokenizer:
    """Base of tokenizers.

    Attributes:
        file_name: Its file in a prepared corpus and in a run directory.
        vocab_size: Number of ids.
    """

    file_name: str
    grammar = None
    """`trees.grammar.Grammar` of what may be output, if there is one."""

    @property
    def word_starts(self):
        """float32 `[vocab_size]`: 1 for ids that begin a word, and for BOS and EOS; None if ids do not tell."""
        return None

    @property
    def hidden_ids(self):
        """int32 `[vocab_size]`: what stands for each id in training where a word is hidden: UNK."""
        ids = np.full(self.vocab_size, UNK, "int32")
        ids[[PAD, EOS, BOS]] = PAD, EOS, BOS
        return ids

    def encode(self, texts):
        """Returns the ids of each text, without BOS and EOS."""
        raise NotImplementedError

    def encode_targets(self, texts):
        """Returns the ids of each target, without BOS and EOS, where targets are not texts as sources are."""
        return self.encode(texts)

    def encode_prefixes(self, texts):
        """Returns the ids of what each target begins with."""
        return self.encode_targets(texts)

    def cut_anew(self, ids, rate, seed):
        """Returns each sequence of ids in other pieces, where each joint of two is left out with probability `rate`.

        Raises:
            UserError: Its ids are not pieces that byte-pair encoding put together.
        """
        raise no_byte_pairs(f"a {type(self).__name__}")

    def decode(self, ids):
        """Returns the text of each sequence of ids; PAD, BOS and EOS are left out."""
        raise NotImplementedError

    def outputs(self, sources, ids):
        """Returns the text of each sequence of ids that a model gave for each of the texts `sources`."""
        return self.decode(ids)

    def pieces(self, ids):
        """Returns the piece of each id."""
        raise UserError(f"a {type(self).__name__} has no pieces(ids), which would show what its ids are")

    def words(self, ids):
        """Return the words that ids make, as texts, and the index of each id's word, int `[ids]`, ascending from 0.

        In scripts that are written without spaces, such as Chinese, each piece is a word.
        """
        ids, starts = np.asarray(ids, int), self.shown_starts
        begins = np.ones(len(ids), bool)
        if starts is not None:
            pieces = self.pieces(ids)
            unspaced = np.array([bool(UNSPACED.search(piece)) for piece in pieces], bool)
            apart = (unspaced[1:] | unspaced[:-1]) & np.array([piece != "▁" for piece in pieces[:-1]], bool)
            begins[1:] = (starts[ids[1:]] == 1) | np.isin(ids[:-1], (BOS, EOS)) | apart
        word_of = np.cumsum(begins) - 1
        words = [ids[word_of == number] for number in range(begins.sum())]
        return [self.decode([word])[0].strip() or "".join(self.pieces(word)) for word in words], word_of

    @property
    def shown_starts(self):
        """As `word_starts`, of what is shown as a word."""
        return self.word_starts

    def to_bytes(self):
        """Returns the content of its file."""
        raise NotImplementedError

    def graph_tokenizer(self):
        """Returns the same as a `data.tokenizer_graph.GraphTokenizer`, for export.

        Raises:
            UserError: There is none.
        """
        raise UserError(f"a {type(self).__name__} has no graph_tokenizer(), which a SavedModel needs")

    @property
    def fingerprint(self):
        """SHA-256 of its file, in hexadecimal."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def save(self, folder):
        """Writes its file into `folder`."""
        with written(Path(folder) / self.file_name, "wb") as file:
            file.write(self.to_bytes())


class SentencePieceTokenizer(Tokenizer):
    """Subwords of a SentencePiece model (BPE unless it was trained otherwise).

    Args:
        model: The model file's bytes.
    """

    file_name = "tokenizer.model"

    def __init__(self, model):
        import sentencepiece

        if not model:  # which SentencePiece takes for no model at all
            raise RuntimeError("the model file is empty")
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocab_size = self._processor.get_piece_size()

    @classmethod
    def train(cls, texts, vocab_size, sample=4_000_000, symbols=(), normalization="identity"):
        """Learn byte-pair encoding (§5.1).

        The model file holds the normalization, so every program that reads the file normalizes alike. All
        normalizations turn Unicode white space, and SentencePiece's own "▁", into single spaces.

        Args:
            texts: Iterable of sentences, both sides together for a joint vocabulary.
            vocab_size: Number of pieces, including the four special ones.
            sample: Maximum number of sentences to learn from, drawn at random.
            symbols: Texts that are whole pieces, wherever they stand.
            normalization: "identity" keeps every other character. "nfkc" and "nfkc_cf" are SentencePiece's `nmt_nfkc`
                and `nmt_nfkc_cf`: compatibility characters such as "½" are replaced, and the latter folds case.

        Raises:
            UserError: The texts cannot fill so large a vocabulary, or do not fit in so small a one.
            Exception: Whatever the iteration over `texts` raises.
        """
        import sentencepiece

        model, failed = io.BytesIO(), []

        def sentences():
            try:
                for text in filter(str.strip, texts):
                    yield LONG_WORD.sub(r"\1 ", text) if len(text) > 10_000 else text
            except BaseException as error:
                failed.append(error)
                raise

        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=sentences(), model_writer=model,
                model_type="bpe", vocab_size=vocab_size, character_coverage=1.0,
                pad_id=PAD, eos_id=EOS, bos_id=BOS, unk_id=UNK,
                input_sentence_size=sample, shuffle_input_sentence=True, max_sentence_length=LONGEST, minloglevel=2,
                user_defined_symbols=list(symbols), **_normalizer(normalization),
            )  # fmt: skip
        except RuntimeError as error:
            if failed:  # of it SentencePiece passes on no more than the text
                raise failed[0] from None
            raise _vocabulary_error(str(error), vocab_size) from None
        return cls(model.getvalue())

    def encode(self, texts):
        return self._processor.encode(list(texts))

    def cut_anew(self, ids, rate, seed):
        rng = random.Random(seed)
        return [self._dropout(row, rate, rng) for row in ids]

    @functools.cached_property
    def _dropout(self):
        from keras_transformer.data.tokenizers.bpe_dropout import PieceDropout

        numbers = range(self.vocab_size)
        scores = [self._processor.get_score(i) for i in numbers]
        if not all(map(float.is_integer, scores)):  # byte-pair encoding's are places in the order of learning
            raise no_byte_pairs("this SentencePiece model")
        if any(map(self._processor.is_byte, numbers)):
            raise no_byte_pairs("a SentencePiece model with bytes for what is no piece")
        # What was not learned, such as the symbols of `train`, has 0, as has what was learned first, the last of them.
        given = [i for i in numbers if not scores[i]][:-1]
        return PieceDropout(self.pieces(numbers), scores, self.word_starts, {*range(len(SPECIAL)), *given})

    def decode(self, ids):
        return self._processor.decode([[int(i) for i in row if i not in (PAD, BOS, EOS)] for row in ids])

    def pieces(self, ids):
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def to_bytes(self):
        return self._model

    def graph_tokenizer(self):
        from keras_transformer.exports.graph_tokenizers import GraphSentencePiece

        return GraphSentencePiece(self._model)

    @property
    def word_starts(self):
        pieces = self.pieces(range(self.vocab_size))
        return _flags([i in (BOS, EOS) or piece[0] == "▁" for i, piece in enumerate(pieces)])

    @property
    def hidden_ids(self):
        """See `Tokenizer`; of a word's first piece its blank stays, as of a word that is not known."""
        ids, blank = super().hidden_ids, self._processor.piece_to_id("▁")
        begins = self.word_starts == 1
        begins[[BOS, EOS]] = False
        ids[begins] = blank
        return ids


class SymbolTokenizer(Tokenizer):
    """One id for each of a fixed list of symbols, which stand apart by spaces in a text."""

    file_name = "symbols.txt"

    def __init__(self, symbols):
        self._symbols = [*SPECIAL, *symbols]
        self._ids = {symbol: i for i, symbol in enumerate(self._symbols) if i >= len(SPECIAL)}
        self.vocab_size = len(self._symbols)

    def encode(self, texts):
        return [[self._ids.get(symbol, UNK) for symbol in text.split()] for text in texts]

    def decode(self, ids):
        return [" ".join(self._symbols[i] for i in row if i not in (PAD, BOS, EOS)) for row in ids]

    def pieces(self, ids):
        return [self._symbols[i] for i in ids]

    @property
    def word_starts(self):
        return _flags([i != PAD for i in range(self.vocab_size)])

    def to_bytes(self):
        return "".join(f"{symbol}\n" for symbol in self._symbols[len(SPECIAL) :]).encode()

    def graph_tokenizer(self):
        from keras_transformer.exports.graph_tokenizers import GraphSymbols

        return GraphSymbols(self._symbols)


WORD_PIECES_FILE, TREES_FILE = "word_pieces.txt", "tree_tokenizer.model"
TOKENIZER_FILES = (SentencePieceTokenizer.file_name, SymbolTokenizer.file_name, WORD_PIECES_FILE, TREES_FILE)


def load_tokenizer(folder):
    """Returns the tokenizer whose file lies in `folder`.

    Raises:
        UserError: There is none, or its file is damaged.
    """
    paths = [path for name in TOKENIZER_FILES if (path := Path(folder) / name).is_file()]
    if not paths:
        raise UserError(f"{folder} holds no tokenizer ({SentencePieceTokenizer.file_name})")
    path = paths[0]
    try:
        if path.name == SymbolTokenizer.file_name:
            return SymbolTokenizer(_read_list(path))
        if path.name == WORD_PIECES_FILE:
            from keras_transformer.data.tokenizers.word_pieces import WordPieceTokenizer

            return WordPieceTokenizer(_read_list(path))
        if path.name == TREES_FILE:
            from keras_transformer.parsing.tokenizer import TreeTokenizer

            return TreeTokenizer(path.read_bytes())
        return SentencePieceTokenizer(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    except RuntimeError:
        raise UserError(f"{path} is damaged: not a SentencePiece model") from None


class VocabularyTooLarge(UserError):
    """A text cannot fill a vocabulary of `vocab_size` pieces, `largest` at most."""

    def __init__(self, vocab_size, largest):
        super().__init__(
            f"the training text cannot fill a vocabulary of {vocab_size} pieces, at most {largest}; {CHANGE}"
        )
        self.largest = int(largest)


def no_byte_pairs(what):
    """Returns the `UserError` for a tokenizer whose pieces were not put together by byte-pair encoding alone."""
    return UserError(f"piece_dropout is of byte-pair encoding alone, which {what} does not do")


def too_small(vocab_size, smallest):
    """Returns the `UserError` for a vocabulary of less than the `smallest` number of pieces: all characters."""
    return UserError(
        f"a vocabulary of {vocab_size} pieces does not hold the text's characters, which take at least {smallest}; "
        f"{CHANGE}"
    )


def nothing_to_learn():
    """Returns the `UserError` for a text without words."""
    return UserError("the training text holds nothing but blank lines; a vocabulary cannot be learned from it")


def _normalizer(normalization):
    """Return the arguments of SentencePiece's trainer for a normalization, see `SentencePieceTokenizer.train`."""
    import sentencepiece

    if normalization != "identity":
        return {"normalization_rule_name": f"nmt_{normalization}"}
    sentencepiece.set_min_log_level(2)  # the normalizer would log to stderr how large it is
    spaces = [char for char in map(chr, range(sys.maxunicode + 1)) if char.isspace() and char != " "]
    return {
        "normalizer": sentencepiece.SentencePieceNormalizer(
            norm_map=[(char, " ") for char in (*spaces, "▁")],
            add_dummy_prefix=True, escape_whitespaces=True, remove_extra_whitespaces=True,
        )
    }  # fmt: skip


def _flags(values):
    return np.array(values, "float32")


def _read_list(path):
    try:
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    except UnicodeDecodeError:
        raise UserError(f"{path} is damaged: not UTF-8") from None


def _vocabulary_error(message, vocab_size):
    """The sentence for what SentencePiece's trainer says when the vocabulary's size does not suit the text."""
    if largest := re.search(r"<= (\d+)", message):
        return VocabularyTooLarge(vocab_size, largest[1])
    if smallest := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return too_small(vocab_size, smallest[1])
    if "sentences_.empty()" in message:
        return nothing_to_learn()
    return UserError(f"the vocabulary of {vocab_size} pieces could not be learned: {message.strip()}; {CHANGE}")
