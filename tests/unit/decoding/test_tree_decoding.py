"""Tests of search constrained by the tree grammar: all outputs are trees, and the search finds the best ones."""

import itertools

import numpy as np
import pytest
from helpers.trees import delinearize
from keras import ops

import keras_transformer as kt
from keras_transformer.data.tokenizers.base import BOS, EOS, PAD
from keras_transformer.decoding import batched_search
from keras_transformer.decoding.beam_search import SearchInputs
from keras_transformer.decoding.search_options import Sampling
from keras_transformer.parsing.constraint import TreeConstraint
from keras_transformer.parsing.grammar import LONGEST_CHAIN, Grammar
from keras_transformer.parsing.linearize import linearize, repaired
from keras_transformer.parsing.tokenizer import TreeTokenizer
from keras_transformer.parsing.tree import DEEPEST, tree_of
from keras_transformer.utils.text import split_words

HPARAMS = kt.HParams(
    num_layers=1, d_model=16, d_ff=16, num_heads=2, dropout=0, extra_length=20, model="word_aligned_transformer"
)  # fmt: skip
SENTENCES = ["a", "b a", "a b a", "b b a a", "a a b b a b"]
SYMBOLS = ("(S", ")S", "(X", ")X", "T", "U")
BEAMS = 7  # shared by most tests to avoid retracing the graph


@pytest.fixture(scope="module")
def tokenizer():
    return TreeTokenizer.train(SENTENCES * 3, set(SYMBOLS), 300)


@pytest.fixture(scope="module")
def translator(tokenizer):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched_search, "SEGMENT", 4)  # so that short searches have several segments
        model = kt.Transformer.from_hparams(HPARAMS, vocab_size=tokenizer.vocab_size)
        yield kt.Translator(model, tokenizer, HPARAMS)


def randomize(translator, seed, scale=0.7):
    """Assign random weights that are large enough for peaked distributions. Return the translator."""
    rng = np.random.default_rng(seed)
    for variable in translator.model.trainable_variables:
        variable.assign(rng.normal(scale=scale, size=variable.shape))
    return translator


def every_tree(words, most):
    """Return all sequences of at most `most` symbols that form trees over the words."""
    found = []

    def extend(symbols, depth, tags):
        if symbols and not depth:
            found.append(symbols)
            return
        if len(symbols) + depth + len(words) - tags > most:
            return
        for symbol in SYMBOLS:
            if symbol[0] == "(":
                extend((*symbols, symbol), depth + 1, tags)
            elif symbol[0] == ")":
                extend((*symbols, symbol), depth - 1, tags) if depth else None
            elif tags < len(words):
                extend((*symbols, symbol), depth, tags + 1)

    extend((), 0, 0)
    trees = set()
    for symbols in found:
        try:
            delinearize(symbols, words)
        except ValueError:
            continue
        trees.add(symbols)
    return trees


@pytest.mark.parametrize("words", [["a"], ["a", "b"], ["a", "b", "a"]])
def test_grammar_allows_exactly_all_trees(tokenizer, words):
    limit = len(words) + 6  # room for five symbols in addition to tags and EOS
    names, found = {i: symbol for symbol, i in tokenizer.symbols.items()}, set()
    prefixes = [()]
    while prefixes:
        prefix = prefixes.pop()
        for i in np.flatnonzero(tokenizer.grammar.allowed(prefix, len(words), limit)):
            if i == EOS:
                found.add(tuple(names[i] for i in prefix))
            else:
                prefixes.append((*prefix, int(i)))
    assert found == every_tree(words, limit - 1) and len(found) >= 4


@pytest.mark.parametrize(("opened", "tagged", "may_open"), [(-1, 0, True), (0, 0, False), (0, 1, True)])
def test_grammar_and_constraint_bound_chains(tokenizer, opened, tagged, may_open):
    prefix = [tokenizer.symbols["(S"]] * (LONGEST_CHAIN + opened) + [tokenizer.symbols["T"]] * tagged
    of_a_search = dict(chances=None, alphas=None, beams=None, nbest=None)
    inputs = SearchInputs(np.array([100]), np.zeros((1, 1), "int32"), words=np.array([1 + tagged]), **of_a_search)
    tokens = np.pad(np.array([[prefix]], "int32"), [(0, 0), (0, 0), (0, 5)])
    found = np.array(TreeConstraint(tokenizer.grammar)(ops.convert_to_tensor(tokens), len(prefix), inputs))[0, 0]
    expected = tokenizer.grammar.allowed(prefix, 1 + tagged, 100)
    np.testing.assert_array_equal(found, expected)
    assert expected[tokenizer.symbols["(X"]] == may_open


@pytest.mark.backend
def test_tree_constraint_matches_grammar(fresh_seed):
    rng = np.random.default_rng(fresh_seed)
    grammar = Grammar({symbol: i for i, symbol in enumerate(SYMBOLS, start=4)}, 12, EOS)
    words, limits = rng.integers(1, 7, 40).astype("int32"), rng.integers(9, 30, 40).astype("int32")
    beams, length = 3, int(limits.max())
    tokens = np.full((40, beams, length), PAD, "int32")
    constraint = TreeConstraint(grammar)
    of_a_search = dict(chances=np.zeros((40, 0, 0), "float32"), alphas=np.zeros(40), beams=None, nbest=None)
    inputs = SearchInputs(limits, np.zeros((40, 1), "int32"), words=words, **of_a_search)
    compared = 0
    for index in range(length):
        found = np.array(constraint(ops.convert_to_tensor(tokens), index, inputs))
        assert found.shape == (40, beams, 12)
        for row, beam in itertools.product(range(40), range(beams)):
            prefix = tokens[row, beam, :index]
            if index >= limits[row] or EOS in prefix:
                continue
            expected = grammar.allowed(prefix, words[row], limits[row])
            np.testing.assert_array_equal(found[row, beam], expected, str(prefix))
            assert expected.any()  # each allowed prefix can be continued
            tokens[row, beam, index] = rng.choice(np.flatnonzero(expected))
            compared += 1
    assert compared > 1000 and (tokens == EOS).any(axis=2).all()


def assert_trees(sentences, hypotheses, tokenizer, extra_length):
    """Assert that hypotheses are trees over the words of their sentence, and that texts and tokens agree."""
    names = {i: symbol for symbol, i in tokenizer.symbols.items()}
    for sentence, found in zip(sentences, hypotheses, strict=True):
        limit = len(tokenizer.encode([sentence])[0]) + 1 + extra_length
        for hypothesis in found:
            *symbols, last = hypothesis.tokens
            assert last == EOS and len(hypothesis.tokens) <= limit
            tree = delinearize([names[i] for i in symbols], split_words(sentence))
            assert hypothesis.text == str(tree) and tree_of(hypothesis.text).words() == split_words(sentence)


@pytest.mark.parametrize(
    "options", [{"beam_size": 1}, {"beam_size": BEAMS, "nbest": 3}, {"beam_size": 3, "sampling": Sampling()}]
)
@pytest.mark.parametrize("extra_length", [2, 5, 20])
def test_random_model_outputs_trees_only(translator, fresh_seed, options, extra_length):
    for seed in range(fresh_seed, fresh_seed + 3):
        found = randomize(translator, seed).translate(SENTENCES, extra_length=extra_length, **options)
        assert_trees(SENTENCES, found, translator.tokenizer, extra_length)


def test_unconstrained_random_model_outputs_no_trees(translator):
    texts = [h.text for h, *_ in randomize(translator, 1).translate(SENTENCES, beam_size=2, constraint=None)]
    assert [tree_of(text).words() for text in texts] == [split_words(sentence) for sentence in SENTENCES]  # repaired
    found = translator.translate(SENTENCES, beam_size=2, constraint=None)
    with pytest.raises(ValueError):
        for sentence, (hypothesis, *_) in zip(SENTENCES, found):
            names = {i: symbol for symbol, i in translator.tokenizer.symbols.items()}
            delinearize([names.get(i, "?") for i in hypothesis.tokens[:-1]], split_words(sentence))


@pytest.mark.parametrize(("seed", "alpha"), [(0, 0.0), (1, 0.6), (2, 0.6)])
def test_wide_beam_finds_best_trees(translator, seed, alpha):
    randomize(translator, seed, 0.4)
    tokenizer = translator.tokenizer
    for sentence in ("a", "b a"):
        source, words = [*tokenizer.encode([sentence])[0], EOS], split_words(sentence)
        extra = 5
        trees = sorted(every_tree(words, len(source) + extra - 1))
        targets = [tuple(tokenizer.symbols[symbol] for symbol in tree) + (EOS,) for tree in trees]
        scores = {
            target: log_p / ((5 + len(target)) / 6) ** alpha
            for target, log_p in zip(targets, log_probabilities(translator.model, source, targets))
        }
        (found,) = translator.translate([sentence], 600, alpha, nbest=5, extra_length=extra)
        best = sorted(scores, key=scores.get, reverse=True)[:5]
        assert [h.tokens for h in found] == best
        np.testing.assert_allclose([h.score for h in found], [scores[tokens] for tokens in best], rtol=1e-4)


def log_probabilities(model, source, targets):
    """Compute the log-probability of each target without a cache."""
    labels = np.full((len(targets), max(map(len, targets))), PAD)
    for row, target in zip(labels, targets):
        row[: len(target)] = target
    decoder_input = np.concatenate([np.full((len(labels), 1), BOS), labels[:, :-1]], axis=1)
    logits = model((np.tile(source, (len(labels), 1)), decoder_input), training=False)
    log_p = np.array(ops.log_softmax(logits), "float64")
    return (np.take_along_axis(log_p, labels[:, :, None], axis=2)[:, :, 0] * (labels != PAD)).sum(axis=1)


def test_unparsable_sentence_gets_flat_tree(translator):
    said = []
    texts = ["a b", "", "a a b b a b", " "]
    found = translator.translate(texts, BEAMS, max_source_length=5, cut=lambda *cut: said.append(cut))
    assert [h.text for (h,) in found][1:] == ["", "(TOP (XX a) (XX a) (XX b) (XX b) (XX a) (XX b))", ""]
    assert tree_of(found[0][0].text).words() == ["a", "b"]
    assert said == [(2, len(translator.tokenizer.encode([texts[2]])[0]) + 1)]
    # The limit leaves no room for brackets in addition to the tags.
    ((hypothesis,),) = translator.translate(["a b"], BEAMS, extra_length=1)
    assert hypothesis.text == "(TOP (XX a) (XX b))" and hypothesis.tokens == ()
    assert hypothesis.score == float("-inf") and found[1][0].score == 0.0


def test_parser_rejects_min_length_and_wrong_prefixes(translator):
    with pytest.raises(kt.UserError, match="min_length must be 0 for a parser"):
        translator.translate(["a b"], min_length=3)
    for prefix in (")S", "T", "(S )S", "(S T )S", "(S T )X"):
        with pytest.raises(kt.UserError, match="no unfinished tree begins with"):
            translator.translate(["a b"], prefixes=[prefix])


def test_tree_depth_is_bounded(tokenizer):
    # Tags between the brackets keep each chain of opening brackets shorter than LONGEST_CHAIN.
    prefix = [tokenizer.symbols["(S"], tokenizer.symbols["T"]] * (DEEPEST - 2)
    assert not tokenizer.grammar.allowed(prefix, 1000, 5000)[tokenizer.symbols["(S"]]
    assert tokenizer.grammar.allowed(prefix[:-2], 1000, 5000)[tokenizer.symbols["(S"]]
    assert tree_of(str(repaired(["(S"] * 300, ["a"]))).words() == ["a"]


@pytest.mark.parametrize(
    "word", ["\u00b4", "\u200b", "a\u00a0b", "▁", "a\u2003b", "\x1c", "½", "\u00ad", "a\u200bb", "⟪S⟫"]
)
def test_tree_tokenizer_counts_unusual_words_once(tokenizer, word):
    ids = tokenizer.encode([f"a {word} b"])[0]
    assert tokenizer.word_starts[ids].sum() == len(split_words(f"a {word} b"))


def test_parse_is_independent_of_batch_mates(translator):
    randomize(translator, 3)
    together = translator.translate(SENTENCES, BEAMS)
    for sentence, (hypothesis, *_) in zip(SENTENCES, together):
        ((alone, *_),) = translator.translate([sentence], BEAMS)
        assert alone.tokens == hypothesis.tokens and alone.score == pytest.approx(hypothesis.score, rel=1e-4)


def test_score_of_tree_matches_search(translator):
    randomize(translator, 4)
    for sentence, (hypothesis, *_) in zip(SENTENCES, translator.translate(SENTENCES, BEAMS)):
        (scored,) = translator.score([sentence], [hypothesis.text])
        assert scored.tokens == hypothesis.tokens
        assert scored.score == pytest.approx(hypothesis.score, rel=1e-4)


def test_parse_starts_with_prefix(translator):
    prefix = "(S (X T )X"
    ((hypothesis, *_),) = translator.translate(["a b"], BEAMS, prefixes=[prefix])
    assert linearize(tree_of(hypothesis.text))[:4] == prefix.split()
