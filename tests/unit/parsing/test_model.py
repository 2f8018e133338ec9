"""Tests of the word-aligned model: word counts and cross-attention masks."""

import numpy as np
import oracles
import pytest
from helpers.quick import eager_functions

import keras_transformer as kt
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.parsing.model import WordAlignedTransformer
from keras_transformer.parsing.tokenizer import TreeTokenizer

TINY = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, dropout=0, model="word_aligned_transformer")


def adopted(tokenizer, hparams=TINY, **kwargs):
    model = WordAlignedTransformer(tokenizer.vocab_size, hparams, **kwargs)
    model.adopt(tokenizer)
    return model


def seen_words(model, source, decoder_input):
    """Return the indices of the source words that the first head sees at each target position of the first row."""
    mask = np.asarray(model.memory_mask(np.array(source), np.array(decoder_input)))[0, 0]
    starts = np.asarray(model.word_starts)[source[0]]
    words = np.cumsum(starts) - starts[0]
    return [sorted(set(words[row].astype(int))) for row in mask]


def test_word_heads_see_one_word_and_others_all(fresh_seed):
    class TwoHeads(WordAlignedTransformer):
        word_heads = 2

    random = np.random.default_rng(fresh_seed)
    starts = np.array([0, 1, 1, 0, 1, 0, 1], "float32")
    source, target = random.integers(1, 7, (4, 9)), random.integers(1, 7, (4, 12))
    source[1, 5:] = source[2, 1:] = target[3, 4:] = PAD
    model = TwoHeads(7, TINY.replace(num_heads=3, d_k=4, d_v=4))
    model.word_starts.assign(starts)
    mask = np.asarray(model.memory_mask(source, target))
    own = oracles.seen_words(source, target, starts)
    assert own.any(axis=2).all()  # positions after the last source word also see a word
    np.testing.assert_array_equal(mask[:, :2], np.stack([own, own], axis=1))
    np.testing.assert_array_equal(mask[:, 2], np.broadcast_to((source != PAD)[:, None], own.shape))


def test_word_heads_count_words_of_text():
    text = "some words and others"
    tokenizer = SentencePieceTokenizer.train([text] * 9, 30)
    ids = [*tokenizer.encode([text])[0], EOS]
    assert sum(piece[0] == "▁" for piece in tokenizer.pieces(ids)) == 4
    target = [[BOS, *[EOS] * 5]]  # each EOS starts a word
    assert seen_words(adopted(tokenizer), [ids], target) == [[0], [1], [2], [3], [4], [4]]


def test_word_heads_count_tags_as_words():
    tokenizer = TreeTokenizer.train(["a b"] * 9, {"(S", ")S", "T", "U"}, 300)
    (ids,) = tokenizer.encode_targets(["(S (S (T a)) (U b))"])
    model = adopted(tokenizer)
    source = [[*tokenizer.encode(["a b"])[0], EOS]]
    turns = [[0], [0], [0], [1], [1], [2], [2]]  # positions: BOS, (S, (S, T, )S, U, )S
    assert seen_words(model, source, [[BOS, *ids]]) == turns
    for count in range(7):
        tokens = np.array([[ids[:count] + [PAD] * (6 - count)]])
        step = np.asarray(model.step_memory_mask(np.array(source), tokens))[:, :, 0]
        np.testing.assert_array_equal(
            step, np.asarray(model.memory_mask(np.array(source), np.array([[BOS, *ids]])))[:, :, count]
        )


def test_word_head_attends_to_current_word_only():
    """Disable self-attention in the encoder and use only word heads. Each output must then depend on one word only."""
    tokenizer = TreeTokenizer.train(["a b"] * 9, {"(S", ")S", "T", "U"}, 300)
    hparams = TINY.replace(num_heads=1)
    model = adopted(tokenizer, hparams)
    for layer in model.encoder.layers:
        layer.self_attention.output_kernel.assign(np.zeros(layer.self_attention.output_kernel.shape))
    sources = np.array([[*ids, EOS] for ids in tokenizer.encode(["a b", "a a", "b b"])])
    (ids,) = tokenizer.encode_targets(["(S (T a) (U b))"])
    one, other_second, other_first = np.asarray(model((sources, np.array([[BOS, *ids]] * 3))))
    same_second, same_first = (np.abs(one - other).max(axis=-1) < 1e-6 for other in (other_second, other_first))
    assert same_second.tolist() == [True, True, False, True, True]  # positions: BOS, (S, T, U, )S
    assert same_first.tolist() == [False, False, True, True, True]


@pytest.mark.backend
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16"])
def test_word_counts_are_exact_in_bfloat16(policy):
    model = adopted(SymbolTokenizer("ab"), dtype=policy)
    mask = np.asarray(model.memory_mask(np.full((1, 600), 4), np.full((1, 600), 4)))
    np.testing.assert_array_equal(mask[0, 0], np.eye(600, dtype=bool))


def test_ensemble_of_word_aligned_and_plain_models():
    tokenizer = SymbolTokenizer("ab")
    models = [kt.Transformer(tokenizer.vocab_size, TINY.replace(seed=2)), adopted(tokenizer)]
    with eager_functions():
        translator = kt.Translator(models, tokenizer, TINY)
        ((found,),) = translator.translate(["a b b a"], beam_size=1, extra_length=4, token_scores=True)
    # Masks that the search computes step by step must equal those that scoring computes for all positions at once.
    assert len(found.tokens) > 3
    assert found.log_probability == pytest.approx(float(found.token_log_probabilities.sum()), abs=1e-4)


def test_translator_passes_word_starts_to_model():
    model = WordAlignedTransformer(6, TINY)
    kt.Translator(model, SymbolTokenizer("ab"), TINY)
    assert np.asarray(model.word_starts).tolist() == SymbolTokenizer("ab").word_starts.tolist() == [0, 1, 1, 1, 1, 1]


def test_word_aligned_model_requires_word_starts():
    class Silent(SymbolTokenizer):
        word_starts = None

    with pytest.raises(kt.UserError, match="needs a tokenizer with word_starts, got a Silent"):
        WordAlignedTransformer(6, TINY).adopt(Silent("ab"))
    kt.Transformer(6, TINY).adopt(Silent("ab"))  # the plain model accepts a tokenizer without word_starts


def test_word_aligned_model_requires_enough_heads():
    class ThreeHeads(WordAlignedTransformer):
        word_heads = 3

    with pytest.raises(kt.UserError, match="num_heads must be at least 3 in a ThreeHeads, got 2"):
        ThreeHeads(6, TINY)


def test_hparams_select_word_aligned_model():
    assert type(kt.Transformer.from_hparams(TINY, vocab_size=6)) is WordAlignedTransformer
    assert type(kt.Transformer.from_hparams(TINY.replace(model="transformer"), vocab_size=6)) is kt.Transformer
