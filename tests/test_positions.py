"""§3.5: positions against their NumPy oracle, and positions that count words."""

import numpy as np
import oracles
import pytest

import keras_transformer as kt
from keras_transformer.data.tokenizer import BOS, EOS, PAD, SentencePieceTokenizer, SymbolTokenizer
from keras_transformer.data.tree_tokenizer import TreeTokenizer
from keras_transformer.layers.position import LearnedPositions, SinusoidalPositions, WordPositions


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(found, "float64"), expected, atol=tolerance)


@pytest.mark.parametrize("d_model", [2, 6, 512])
def test_sinusoids_are_interleaved(d_model):
    close(SinusoidalPositions(d_model)(np.arange(40)), oracles.sinusoids(range(40), d_model))


def test_positions_longer_than_any_in_training():
    positions = np.array([3, 4, 5, 5_000, 20_000])
    close(SinusoidalPositions(16, max_length=4)(positions), oracles.sinusoids(positions, 16), tolerance=3e-3)


@pytest.mark.parametrize("d_model", [8, 512])
def test_wavelengths_run_from_2_pi_to_almost_10000_times_that(d_model):
    step = np.asarray(SinusoidalPositions(d_model)(np.array([1])), "float64")[0]
    wavelengths = 2 * np.pi / np.arctan2(step[0::2], step[1::2])
    assert wavelengths[0] == pytest.approx(2 * np.pi)
    assert wavelengths[-1] == pytest.approx(2 * np.pi * 10000 ** ((d_model - 2) / d_model))
    np.testing.assert_allclose(wavelengths[1:] / wavelengths[:-1], 10000 ** (2 / d_model), rtol=1e-4)


@pytest.mark.parametrize("offset", [1, 7, 100])
def test_a_shift_is_a_linear_map_of_the_encoding(offset):
    encoding = np.asarray(SinusoidalPositions(16)(np.arange(300)))
    shift = np.zeros((16, 16))
    for i in range(0, 16, 2):
        sine, cosine = encoding[offset, i : i + 2]
        shift[i : i + 2, i : i + 2] = [[cosine, sine], [-sine, cosine]]
    close(encoding[: 300 - offset] @ shift.T, encoding[offset:], tolerance=1e-4)


def test_learned_positions():
    layer = LearnedPositions(16, max_length=10, seed=1)
    encoding = np.asarray(layer(np.arange(13)))
    close(encoding[:10], oracles.array(layer.table) * 4)
    assert len(np.unique(encoding[:10], axis=0)) == 10
    np.testing.assert_array_equal(encoding[10:], encoding[[9, 9, 9]])


# Positions that count words


def test_half_tells_the_place_and_half_the_word():
    words = np.array([[0, 0, 1, 2], [0, 1, 2, 3]], "float32")
    found = np.asarray(WordPositions(16)(np.arange(4), words))
    close(found[:, :, :8], np.broadcast_to(oracles.sinusoids(range(4), 8), (2, 4, 8)))
    close(found[:, :, 8:], [oracles.sinusoids(row, 8) for row in words])


def test_the_model_counts_words():
    tokenizer = SentencePieceTokenizer.train(["some words and others"] * 9, 30)
    hparams = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, positions="words")
    model = kt.Transformer(tokenizer.vocab_size, hparams)
    model.adopt(tokenizer)
    seen, text = [], "some words and others"

    def encode(positions, words):
        seen.append(np.asarray(words))
        return np.zeros((*words.shape, 16), "float32")

    model.positions.call = encode
    ids = [*tokenizer.encode([text])[0], EOS, PAD]
    model._embed(np.array([ids]))
    starts = [piece[0] == "▁" or i == EOS for piece, i in zip(tokenizer.pieces(ids), ids)]
    assert seen[0][0].tolist() == (np.cumsum(starts) - 1).tolist() and seen[0][0].max() == 4
    model._embed(np.array([[BOS, *ids[:3]]]))
    assert seen[1][0][0] == 0 and seen[1][0][1] == 1


def test_a_tag_is_a_word_of_the_target():
    tokenizer = TreeTokenizer.train(["a b"] * 9, {"(S", ")S", "T", "U"}, 300)
    hparams = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, positions="words")
    model = kt.Transformer(tokenizer.vocab_size, hparams)
    model.adopt(tokenizer)
    (ids,) = tokenizer.encode_targets(["(S (S (T a)) (U b))"])
    counts = [int(model.places_after(np.array([[ids[:n] + [PAD] * (6 - n)]]), n)[1][0, 0]) for n in range(7)]
    assert counts == [0, 0, 0, 1, 1, 2, 2]  # (S (S T )S U )S


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16"])
def test_words_are_counted_beyond_what_bfloat16_can(policy):
    hparams = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, positions="words")
    model = kt.Transformer(6, hparams, dtype=policy)
    model.adopt(SymbolTokenizer("ab"))
    seen, encode = [], model.positions.call

    def recorded(positions, words):
        seen.append(np.asarray(words))
        return encode(positions, words)

    model.positions.call = recorded
    tokens = np.full((1, 600), 4)
    model((tokens, tokens))
    assert len(seen) == 2 and all(np.array_equal(words[0], np.arange(600)) for words in seen)


def test_a_translator_wants_a_model_that_knows_its_words():
    hparams = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, positions="words")
    with pytest.raises(kt.UserError, match="adopt"):
        kt.Translator(kt.Transformer(6, hparams), SymbolTokenizer("ab"), hparams)


def test_a_vocabulary_must_tell_where_words_begin():
    class Silent(SymbolTokenizer):
        word_starts = None

    hparams = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, positions="words")
    with pytest.raises(kt.UserError, match="where words begin"):
        kt.Transformer(6, hparams).adopt(Silent("ab"))
    kt.Transformer(6, hparams.replace(positions="sinusoidal")).adopt(Silent("ab"))  # need not


def test_symbols_are_words():
    assert SymbolTokenizer("ab").word_starts.tolist() == [0, 1, 1, 1, 1, 1]


def test_the_width_must_be_divisible_by_4():
    with pytest.raises(kt.UserError, match="divisible by 4, not 6"):
        kt.HParams(d_model=6, num_heads=1, positions="words")
