"""Conversion of a tokenizer to `tokenizer.json`, the format of Hugging Face's tokenizers and of transformers.js."""

import base64

from keras_transformer.data.tokenizers.base import EOS, SPECIAL, UNK
from keras_transformer.utils.errors import UserError, optional_import

SPACE = "▁"
"""Character that SentencePiece uses for spaces."""
UNUSED_SCORE = -1e4
"""Score of pieces that only targets use. It is so low that a unigram model never chooses these pieces for sources."""


def fast_tokenizer(pieces, source_model):
    """Return the contents of a tokenizer.json that encodes sources and decodes ids of sources and targets.

    The tokenizer returns the same ids as SentencePiece, with four exceptions. First, if the model has byte fallback, a
    source character that only the target vocabulary contains becomes one piece instead of bytes. Second, the tokenizer
    drops spaces next to placeholders and next to the problem's `user_symbols`. Third, it adds the piece "▁" before
    language codes such as `>>fra<<`. Fourth, if the model keeps repeated spaces, the tokenizer drops one space at the
    beginning of a text.

    Args:
        pieces: List of all pieces, indexed by id. The special tokens come first.
        source_model: Bytes of the SentencePiece model for sources.

    Raises:
        UserError: protobuf, which parses the model, is not installed, or the model's pieces end with spaces.
    """
    with optional_import("--format=huggingface", "protobuf", "huggingface"):
        from sentencepiece import sentencepiece_model_pb2 as protocol
    source = protocol.ModelProto.FromString(source_model)
    if source.trainer_spec.treat_whitespace_as_suffix:
        raise UserError(
            "--format=huggingface requires a SentencePiece model with treat_whitespace_as_suffix=false, got true. "
            "Export with --format=saved_model."
        )
    scores = {piece.piece: piece.score for piece in source.pieces}
    bytes_kind, symbol_kind = (getattr(protocol.ModelProto.SentencePiece, name) for name in ("BYTE", "USER_DEFINED"))
    fallback = any(piece.type == bytes_kind for piece in source.pieces)
    if source.trainer_spec.model_type == protocol.TrainerSpec.BPE:
        vocabulary = {piece: index for index, piece in enumerate(pieces)}
        ordinary = [piece.piece for piece in source.pieces if piece.type == protocol.ModelProto.SentencePiece.NORMAL]
        merges = [list(pair) for pair in merge_rules(ordinary, scores)]
        model = {"type": "BPE", "unk_token": SPECIAL[UNK], "byte_fallback": fallback, "fuse_unk": True}
        model |= {"vocab": vocabulary, "merges": merges}
    else:
        vocabulary = [[piece, scores.get(piece, UNUSED_SCORE)] for piece in pieces]
        model = {"type": "Unigram", "unk_id": UNK, "byte_fallback": fallback, "vocab": vocabulary}
    symbols = {piece.piece for piece in source.pieces if piece.type == symbol_kind}
    eos = {"SpecialToken": {"id": SPECIAL[EOS], "type_id": 0}}
    texts = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": index, "content": piece, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": piece in SPECIAL}
            for index, piece in enumerate(pieces) if piece in SPECIAL or piece in symbols
        ],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(source.normalizer_spec)},
        "pre_tokenizer": {
            "type": "Metaspace", "replacement": SPACE, "split": source.trainer_spec.split_by_whitespace,
            "prepend_scheme": "always" if source.normalizer_spec.add_dummy_prefix else "never",
        },
        "model": model,
        "post_processor": {
            "type": "TemplateProcessing", "single": [texts[0], eos], "pair": [*texts, eos],
            "special_tokens": {SPECIAL[EOS]: {"id": SPECIAL[EOS], "ids": [EOS], "tokens": [SPECIAL[EOS]]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
    }  # fmt: skip


def merge_rules(pieces, scores):
    """Return the merge rules of byte-pair encoding, (left, right), in the order in which the tokenizer applies them.

    Args:
        pieces: The pieces that are not special.
        scores: {piece: score}. Merges that result in pieces with higher scores come first.
    """
    known = set(pieces)
    rules = [
        (-scores[piece], piece[:split], piece[split:])
        for piece in pieces
        for split in range(1, len(piece))
        if piece[:split] in known and piece[split:] in known
    ]
    return [rule[1:] for rule in sorted(rules, key=lambda rule: rule[0])]


def _normalizers(spec):
    """Return the entries of tokenizer.json for the normalization that a SentencePiece model applies."""
    normalizers = []
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode("ascii")
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:
        normalizers.append({"type": "Strip", "strip_left": True, "strip_right": True})
        normalizers.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return normalizers
