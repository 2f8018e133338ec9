"""Tests of the compiled search for a single sentence."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.decoding.batched_search import BatchedBeamSearch
from keras_transformer.decoding.search_options import Sampling
from keras_transformer.utils.errors import NonFiniteOutputs

HPARAMS = kt.HParams(num_layers=1, d_model=16, d_ff=16, num_heads=2, dropout=0, beam_size=3, extra_length=7)
OPTIONS = {"nbest": 2, "alpha": 0.9}


class CountingSearch(BatchedBeamSearch):
    """Beam search that counts how often the backend traces the search for a single sentence."""

    traced = 0

    def _run_whole(self, *arguments, **constants):
        self.traced += 1
        return super()._run_whole(*arguments, **constants)


@pytest.fixture(scope="module")
def translator():
    tokenizer = SymbolTokenizer("abcdef")
    translator = kt.Translator(kt.Transformer(tokenizer.vocab_size, HPARAMS), tokenizer, HPARAMS, jit_compile="auto")
    translator._beam_search = CountingSearch(translator.models, "auto")
    translator.compile_ahead(alpha=0.9)
    return translator


@pytest.fixture
def alone(translator):
    """The translator with random weights. The trace count is reset to 1, its value after `compile_ahead`."""
    generator = np.random.default_rng(5)
    for variable in translator.model.trainable_variables:
        variable.assign(generator.normal(0, 0.6, variable.shape))
    translator._beam_search.traced = 1
    return translator


@pytest.mark.backend
@pytest.mark.parametrize("text", ["f e d c b a", " ".join("abcdef" * 10 + "abc")])
def test_single_sentence_translates_as_in_a_batch(alone, text):
    single, batch = alone.translate([text], **OPTIONS), alone.translate([text] * 2, **OPTIONS)
    assert alone._beam_search.traced == 1, "the search was compiled again"
    assert [one.tokens for one in single[0]] == [one.tokens for one in batch[0]]
    np.testing.assert_allclose([one.score for one in single[0]], [one.score for one in batch[0]], rtol=1e-4)


@pytest.mark.parametrize(
    ("text", "options"),
    [("a " * 64, {}), ("a b", {"prefixes": ["b"]}), ("a b", {"phrases": [["c"]]}), ("a", {"sampling": Sampling()})],
)
def test_unusual_sentences_compile_nothing_alone(alone, text, options):
    assert alone.translate([text], **options)[0][0].tokens
    assert alone._beam_search.traced == 1


def test_single_sentence_reports_nonfinite_outputs(alone):
    variable = alone.model.trainable_variables[-1]
    variable.assign(np.full(variable.shape, np.nan))
    with pytest.raises(NonFiniteOutputs, match="^outputs for text 1 "):
        alone.translate(["a b"])
