"""Tokenizer of Marian models, which has two SentencePiece models and one vocabulary."""

import base64
import json

import numpy as np

from keras_transformer.data.language_tags import LANGUAGE_CODE, TAG, marian_tags, vocabulary_tags
from keras_transformer.data.placeholders import placeholder_ids
from keras_transformer.data.tokenizers.base import BOS, EOS, SPECIAL, UNK, Tokenizer, text_ids


class MarianTokenizer(Tokenizer):
    """Tokenizer with one SentencePiece model for sources, one for targets, and one vocabulary for both.

    Args:
        pieces: All pieces in the order of their ids. The special tokens come first.
        source_model, target_model: Bytes of the two SentencePiece models. The tokenizer ignores their token ids.
    """

    file_name = "marian_tokenizer.json"

    def __init__(self, pieces, source_model, target_model):
        import sentencepiece

        if not (source_model and target_model):  # SentencePiece would treat empty bytes as a missing argument
            raise RuntimeError("the model file is empty")
        if tuple(pieces[: len(SPECIAL)]) != SPECIAL:
            raise ValueError(f"the first pieces must be {', '.join(SPECIAL)}, got {pieces[: len(SPECIAL)]}")
        self._pieces, self._models = list(pieces), (source_model, target_model)
        # Texts such as "</s>" must not become special tokens.
        self._ids = {piece: index for index, piece in enumerate(self._pieces) if index >= len(SPECIAL)}
        self._source, self._target = (sentencepiece.SentencePieceProcessor(model_proto=model) for model in self._models)
        self.vocab_size = len(self._pieces)
        self.tags = vocabulary_tags(self._pieces) | marian_tags(self._pieces)
        self.placeholders = placeholder_ids(self._pieces)

    @classmethod
    def join(cls, source, target):
        """Create a tokenizer from the `SentencePieceTokenizer`s of both sides. Equal pieces get the same id."""
        pieces = dict.fromkeys(piece for side in (source, target) for piece in side.pieces(range(side.vocab_size)))
        return cls([*pieces], source.to_bytes(), target.to_bytes())

    def reverse(self):
        return type(self)(self._pieces, *self._models[::-1])

    def encode(self, texts):
        return [self._encode_source(text) for text in texts]

    def encode_targets(self, texts):
        return [self._to_ids(pieces) for pieces in self._target.encode(list(texts), out_type=str)]

    def decode(self, ids):
        """Decode ids as a source if only the source's model contains all their pieces, otherwise as a target."""
        rows = [self._text_pieces(row) for row in ids]
        return [self._side_of(row).decode_pieces(row) for row in rows]

    def decode_outputs(self, sources, ids):
        return [self._target.decode_pieces(self._text_pieces(row)) for row in ids]

    def _text_pieces(self, ids):
        return self.pieces(text_ids(ids))

    def _side_of(self, pieces):
        """Return the source's SentencePiece model if only this model contains all pieces, otherwise the target's."""
        for side in (self._target, self._source):
            if all(side.id_to_piece(side.piece_to_id(piece)) == piece for piece in pieces):
                return side
        return self._target

    def pieces(self, ids):
        return [self._pieces[i] for i in ids]

    @property
    def models(self):
        """Bytes of the SentencePiece models for sources and for targets."""
        return self._models

    @property
    def word_starts(self):
        starts = [i in (BOS, EOS) or piece.startswith("▁") for i, piece in enumerate(self._pieces)]
        return np.array(starts, "float32")

    @property
    def hidden_ids(self):
        """Replacement ids for word dropout (see `Tokenizer.hidden_ids`). Word dropout does not change language tags."""
        ids = super().hidden_ids
        tags = [i for i, piece in enumerate(self._pieces) if TAG.fullmatch(piece) or LANGUAGE_CODE.fullmatch(piece)]
        ids[tags] = tags
        return ids

    def _encode_source(self, text):
        code = LANGUAGE_CODE.match(text)
        start = [code[1]] if code and code[1] in self._ids else []
        return self._to_ids([*start, *self._source.encode(text[code.end() :] if start else text, out_type=str)])

    def _to_ids(self, pieces):
        return [self._ids.get(piece, UNK) for piece in pieces]

    @classmethod
    def from_bytes(cls, content):
        try:
            values = json.loads(content)
            source, target = (base64.b64decode(values[side], validate=True) for side in ("source", "target"))
            return cls(values["pieces"], source, target)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a MarianTokenizer file ({error!r})") from None

    def to_bytes(self):
        source, target = (base64.b64encode(model).decode("ascii") for model in self._models)
        values = {"pieces": self._pieces, "source": source, "target": target}
        return (json.dumps(values, ensure_ascii=False) + "\n").encode("utf-8")
