"""Tests of converting tokenizers to the format of Hugging Face's tokenizers library."""

import io
import itertools
import json

import pytest
import sentencepiece
from helpers.languages import toy_pairs

from keras_transformer.data.tokenizers.base import EOS, UNK
from keras_transformer.data.tokenizers.marian import MarianTokenizer
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.vocabulary import VocabularyOptions, adapt_model
from keras_transformer.exports.fast_tokenizer import fast_tokenizer, merge_rules
from keras_transformer.utils.errors import UserError

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


def foreign(**options):
    """Train a SentencePiece model with options that this package never uses. Return the tokenizer of the model."""
    model, texts = io.BytesIO(), [source for source, _ in toy_pairs("tr", 1)[:300]]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=40, minloglevel=2, **options
    )
    return SentencePieceTokenizer(adapt_model(model.getvalue(), "foreign.model"))


@pytest.mark.parametrize("options", [{"add_dummy_prefix": False}, {"split_by_whitespace": False}])
def test_fast_tokenizer_follows_foreign_models(options):
    library = pytest.importorskip("tokenizers")
    tokenizer = foreign(**options)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    fast = library.Tokenizer.from_str(json.dumps(fast_tokenizer(pieces, tokenizer.to_bytes())))
    for text in [*TEXTS, *(source for source, _ in toy_pairs("tr", 2)[:50])]:
        assert fast.encode(text).ids == [*tokenizer.encode([text])[0], EOS], text


def test_fast_tokenizer_rejects_spaces_at_the_end_of_pieces():
    tokenizer = foreign(treat_whitespace_as_suffix=True)
    with pytest.raises(UserError, match="treat_whitespace_as_suffix"):
        fast_tokenizer(tokenizer.pieces(range(tokenizer.vocab_size)), tokenizer.to_bytes())


def test_merge_rules_follow_the_scores():
    scores = {"a": -5.0, "b": -6.0, "c": -7.0, "bc": -1.0, "ab": -2.0, "abc": -3.0}
    assert merge_rules(list(scores), scores) == [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c")]
