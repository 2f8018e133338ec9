"""Tests of converting tokenizers to the format of Hugging Face's tokenizers library."""

import itertools
import json

import pytest
from helpers.languages import toy_pairs

from keras_transformer.data.tokenizers.base import EOS, UNK
from keras_transformer.data.tokenizers.marian import MarianTokenizer
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.vocabulary import VocabularyOptions
from keras_transformer.exports.fast_tokenizer import fast_tokenizer, merge_rules

TEXTS = ["The red dog sees the old house.", "  two   spaces ", "", "½ unknown Ω", "▁ dog"]


def separate(size, options, seed):
    """Return a tokenizer with one vocabulary for each side."""
    sides = zip(*toy_pairs("tr", seed)[:500])
    return MarianTokenizer.join(*(SentencePieceTokenizer.train(iter(side), size, options) for side in sides))


def joint(size, options, seed):
    """Return a tokenizer with one vocabulary for both sides."""
    return SentencePieceTokenizer.train(itertools.chain(*toy_pairs("tr", seed)[:500]), size, options)


@pytest.mark.parametrize(
    "make, size, options",
    [
        (separate, 100, VocabularyOptions()),
        (separate, 40, VocabularyOptions("unigram", "nfkc")),
        (joint, 400, VocabularyOptions(byte_fallback=True, character_coverage=0.99)),
    ],
)
def test_fast_tokenizer_gives_the_same_ids(make, size, options, fresh_seed):
    library = pytest.importorskip("tokenizers")
    tokenizer = make(size, options, fresh_seed)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    source_model = getattr(tokenizer, "models", [tokenizer.to_bytes()])[0]
    fast = library.Tokenizer.from_str(json.dumps(fast_tokenizer(pieces, source_model)))
    sources, targets = zip(*toy_pairs("tr", fresh_seed + 1)[:200])
    for text in [*sources, *TEXTS]:
        ids = tokenizer.encode([text])[0]
        assert fast.encode(text).ids == [*ids, EOS], text
        if UNK not in ids:
            assert fast.decode(ids) == tokenizer.decode([ids])[0]
    for target, ids in zip(targets, tokenizer.encode_targets(targets)):
        assert fast.decode(ids) == target


def test_merge_rules_follow_the_scores():
    scores = {"a": -5.0, "b": -6.0, "c": -7.0, "bc": -1.0, "ab": -2.0, "abc": -3.0}
    assert merge_rules(list(scores), scores) == [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c")]
