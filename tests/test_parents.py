"""The bracket in which a symbol stands: equal to a stack's top, in training and in a search."""

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras.backend import backend

import keras_transformer as kt
from keras_transformer.data.tokenizer import BOS, PAD, SymbolTokenizer
from keras_transformer.data.tree_tokenizer import TreeTokenizer
from keras_transformer.layers.parents import parent_of_last, parents

SYMBOLS = {"(S", ")S", "(NP", ")NP", "T", "U"}
TINY = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, dropout=0, parent_labels=True)
TREE = "(S (NP (T a) (NP (U b))) (U c) (S (T d)))"


@pytest.fixture(scope="module")
def tokenizer():
    return TreeTokenizer.train(["a b c d"] * 9, SYMBOLS, 300)


def named(tokenizer, ids):
    names = {i: symbol for symbol, i in tokenizer.symbols.items()} | {PAD: ""}
    return [names[int(i)] for i in np.ravel(ids)]


def test_each_symbol_of_a_tree_has_the_bracket_around_it(tokenizer):
    (ids,) = tokenizer.encode_targets([TREE])
    assert " ".join(named(tokenizer, ids)) == "(S (NP T (NP U )NP )NP U (S T )S )S"
    expected = ["", "(S", "(NP", "(NP", "(NP", "(NP", "(S", "(S", "(S", "(S", "(S", ""]
    assert named(tokenizer, parents(np.array([ids]), tokenizer.brackets)) == expected
    # A search knows the symbols so far, and padding behind them.
    so_far = [[[*ids[:count], *[PAD] * (len(ids) - count)] for count in range(1, len(ids) + 1)]]
    assert named(tokenizer, parent_of_last(np.array(so_far), tokenizer.brackets)) == expected
    assert named(tokenizer, parent_of_last(np.array([[[PAD, PAD]]]), tokenizer.brackets)) == [""]


@settings(deadline=None)  # a first call compiles
@given(st.lists(st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 7]), min_size=9, max_size=9), min_size=3, max_size=3))
def test_of_any_symbols_training_and_search_see_the_same(rows):
    tokens, brackets = np.array(rows, "int32"), np.array([0, 0, 0, 1, 1, 1, -1, -1], "float32")
    found = np.asarray(parents(tokens, brackets))
    np.testing.assert_array_equal(found, oracles.parents(tokens, brackets))
    for place in range(tokens.shape[1]):
        so_far = np.where(np.arange(tokens.shape[1]) <= place, tokens, PAD)
        np.testing.assert_array_equal(parent_of_last(so_far[:, None], brackets)[:, 0], found[:, place])


@pytest.mark.parametrize("dtype", ["int32", "int64", *(["uint8", "uint16"] if backend() == "jax" else [])])
def test_ids_of_any_integer_type(dtype):
    tokens, brackets = np.array([[3, 1, 6, 3, 1, 0]]), np.array([0, 0, 0, 1, 1, 1, -1, -1], "float32")
    assert np.asarray(parents(tokens.astype(dtype), brackets)).tolist() == [[0, 3, 0, 0, 3, 3]]
    assert np.asarray(parent_of_last(tokens.astype(dtype), brackets)).tolist() == [3]


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16"])
def test_depths_are_counted_beyond_what_bfloat16_can(tokenizer, policy):
    model = kt.Transformer(tokenizer.vocab_size, TINY, dtype=policy)
    model.adopt(tokenizer)
    ids = [tokenizer.symbols[symbol] for symbol in ["(S"] * 256 + ["(NP", "(S", ")S"]]
    _, symbols = model.state_after(np.array([[ids]]))
    assert named(tokenizer, symbols) == ["(NP"]
    assert named(tokenizer, parents(np.array([ids]), model.brackets))[-3:] == ["(S", "(NP", "(NP"]


def test_the_decoder_is_told_the_bracket_and_its_root_nothing(tokenizer):
    """With all else silenced, logits depend on the symbol, its position and its parent."""
    model = kt.Transformer(tokenizer.vocab_size, TINY)
    model.adopt(tokenizer)
    for layer in model.decoder.layers:
        for attention in (layer.self_attention, layer.cross_attention):
            attention.output_kernel.assign(np.zeros(attention.output_kernel.shape))
    source = np.array([tokenizer.encode(["a b c d"])[0]] * 2)
    one, other = (tokenizer.encode_targets([text])[0] for text in ("(S (S (T a)) (T b))", "(NP (S (T a)) (T b))"))
    first, second = np.asarray(model((source, np.array([[BOS, *one], [BOS, *other]]))))
    differs = np.abs(first - second).max(axis=-1) > 1e-6
    # BOS, the bracket itself, (S in it, T in (S, )S in it, T in it, and the closing bracket itself
    assert differs.tolist() == [False, True, True, False, True, True, True]


def test_an_ensemble_of_models_that_follow_brackets_and_that_do_not(tokenizer):
    models = [kt.Transformer(tokenizer.vocab_size, TINY.replace(parent_labels=bool(i), seed=i)) for i in (0, 1)]
    models[1].adopt(tokenizer)
    ((found,),) = kt.Translator(models, tokenizer, TINY).translate(["a b b a"], beam_size=3, token_scores=True)
    # The search follows brackets from step to step, teacher forcing all places at once.
    assert len(found.tokens) > 3
    assert found.log_probability == pytest.approx(float(found.token_log_probabilities.sum()), abs=1e-4)


def test_what_has_no_brackets_is_refused():
    model = kt.Transformer(6, TINY)
    with pytest.raises(kt.UserError, match="adopt"):
        kt.Translator(model, SymbolTokenizer("ab"), TINY)
    with pytest.raises(kt.UserError, match="parent_labels need trees"):
        model.adopt(SymbolTokenizer("ab"))
