"""Heads that see only the word whose turn it is: how words are counted, and what is seen."""

import numpy as np
import oracles
import pytest
from helpers.quick import eager_functions
from keras.backend import backend

import keras_transformer as kt
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD
from keras_transformer.data.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.layers.word_heads import word_mask, word_numbers
from keras_transformer.parsing.tokenizer import TreeTokenizer

TINY = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, dropout=0, word_heads=1)


def adopted(tokenizer, hparams=TINY, **kwargs):
    model = kt.Transformer(tokenizer.vocab_size, hparams, **kwargs)
    model.adopt(tokenizer)
    return model


def test_the_first_heads_see_one_word_and_the_others_all(fresh_seed):
    random = np.random.default_rng(fresh_seed)
    starts = np.array([0, 1, 1, 0, 1, 0, 1], "float32")
    source, target = random.integers(1, 7, (4, 9)), random.integers(1, 7, (4, 12))
    source[1, 5:] = source[2, 1:] = target[3, 4:] = PAD
    words = np.where(source == PAD, -1, np.asarray(word_numbers(source, starts)))
    mask = np.asarray(word_mask(np.asarray(word_numbers(target, starts)), words, num_heads=3, word_heads=2))
    own = oracles.seen_words(source, target, starts)
    assert own.any(axis=2).all()  # also where the target has more words than the source
    np.testing.assert_array_equal(mask[:, :2], np.stack([own, own], axis=1))
    np.testing.assert_array_equal(mask[:, 2], np.broadcast_to((source != PAD)[:, None], own.shape))


def test_words_of_a_text_are_counted():
    text = "some words and others"
    tokenizer = SentencePieceTokenizer.train([text] * 9, 30)
    ids = [*tokenizer.encode([text])[0], EOS, PAD]
    starts = [piece[0] == "▁" or i == EOS for piece, i in zip(tokenizer.pieces(ids), ids)]
    _, words = adopted(tokenizer).encode(np.array([ids]))
    assert np.asarray(words)[0].tolist() == [*(np.cumsum(starts[:-1]) - 1).tolist(), -1]
    assert np.max(words) == 4


@pytest.mark.backend
@pytest.mark.parametrize("dtype", ["int32", "int64", *(["uint8", "uint16"] if backend() == "jax" else [])])
def test_a_model_that_does_not_count_tells_padding_only(dtype):
    model = kt.Transformer(6, TINY.replace(word_heads=0))
    _, words = model.encode(np.array([[4, 5, EOS, PAD]], dtype))
    assert np.asarray(words).tolist() == [[0, 0, 0, -1]]


def test_a_tag_is_a_word_of_the_target():
    tokenizer = TreeTokenizer.train(["a b"] * 9, {"(S", ")S", "T", "U"}, 300)
    (ids,) = tokenizer.encode_targets(["(S (S (T a)) (U b))"])
    model = adopted(tokenizer)
    turns = [int(model.words_after(np.array([[ids[:n] + [PAD] * (6 - n)]]))[0, 0]) for n in range(7)]
    assert turns == [0, 0, 0, 1, 1, 2, 2]  # (S (S T )S U )S


def test_of_two_words_of_the_encoder_the_head_tells_the_one_whose_turn_it_is():
    """Changes behind the word are not seen by a model that has word heads alone, and no self-attention to speak of."""
    tokenizer = TreeTokenizer.train(["a b"] * 9, {"(S", ")S", "T", "U"}, 300)
    hparams = TINY.replace(num_heads=1)
    model = adopted(tokenizer, hparams)
    for layer in model.encoder.layers:  # words do not see each other
        layer.self_attention.output_kernel.assign(np.zeros(layer.self_attention.output_kernel.shape))
    sources = np.array([[*ids, EOS] for ids in tokenizer.encode(["a b", "a a", "b b"])])
    (ids,) = tokenizer.encode_targets(["(S (T a) (U b))"])
    one, other_second, other_first = np.asarray(model((sources, np.array([[BOS, *ids]] * 3))))
    same_second, same_first = (np.abs(one - other).max(axis=-1) < 1e-6 for other in (other_second, other_first))
    assert same_second.tolist() == [True, True, False, True, True]  # BOS (S | T | U )S: then the end
    assert same_first.tolist() == [False, False, True, True, True]


@pytest.mark.backend
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16"])
def test_words_are_counted_beyond_what_bfloat16_can(policy):
    _, words = adopted(SymbolTokenizer("ab"), dtype=policy).encode(np.full((1, 600), 4))
    np.testing.assert_array_equal(np.asarray(words)[0], np.arange(600))


def test_an_ensemble_of_models_that_count_and_that_do_not():
    tokenizer = SymbolTokenizer("ab")
    models = [kt.Transformer(tokenizer.vocab_size, TINY.replace(word_heads=0, seed=2)), adopted(tokenizer)]
    with eager_functions():
        translator = kt.Translator(models, tokenizer, TINY)
        ((found,),) = translator.translate(["a b b a"], beam_size=1, extra_length=4, token_scores=True)
    # The search counts from step to step, teacher forcing all places at once.
    assert len(found.tokens) > 3
    assert found.log_probability == pytest.approx(float(found.token_log_probabilities.sum()), abs=1e-4)


def test_a_translator_wants_a_model_that_knows_its_words():
    with pytest.raises(kt.UserError, match="adopt"):
        kt.Translator(kt.Transformer(6, TINY), SymbolTokenizer("ab"), TINY)


def test_a_vocabulary_must_tell_where_words_begin():
    class Silent(SymbolTokenizer):
        word_starts = None

    with pytest.raises(kt.UserError, match="where words begin"):
        kt.Transformer(6, TINY).adopt(Silent("ab"))
    kt.Transformer(6, TINY.replace(word_heads=0)).adopt(Silent("ab"))  # need not


def test_symbols_are_words():
    assert SymbolTokenizer("ab").word_starts.tolist() == [0, 1, 1, 1, 1, 1]


def test_more_word_heads_than_heads():
    with pytest.raises(kt.UserError, match="word_heads=3 are more than num_heads=2"):
        TINY.replace(word_heads=3)
