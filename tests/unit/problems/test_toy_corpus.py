"""Tests of the built-in toy corpus: its pairs, splits, word frequencies and variety of sentences."""

import collections
import hashlib
import itertools
import random
import re
import sys

import pytest

from keras_transformer.config import registry
from keras_transformer.tasks.problem import load_problem

registry.load_catalog()
grammar = sys.modules[registry.problems.get("toy_ende").__module__]
NOMINATIVE, ACCUSATIVE = grammar.NOMINATIVE, grammar.ACCUSATIVE
SIZES = {"train": 30_000, "validation": 500, "test": 1000}
POOLS = {False: grammar.SINGULAR_DETERMINERS, True: grammar.PLURAL_DETERMINERS}


@pytest.fixture(scope="module")
def corpus():
    """Return {split: list of examples}."""
    return {split: list(grammar.examples(split, count)) for split, count in SIZES.items()}


def words_of(text):
    return re.findall(r"\w+", text.lower())


def test_toy_english_determines_german_and_tree(fresh_seed, monkeypatch):
    """Check that a repeated English sentence always comes with the same German sentence and tree.

    The test shrinks the lexicon so that sentences repeat often.
    """
    for name in ("NOUNS_OF", "NOUNS_AFTER", "ADJECTIVES_OF"):
        monkeypatch.setattr(grammar, name, {key: rows[:1] for key, rows in getattr(grammar, name).items()})
    for name in ("SINGULAR_DETERMINERS", "PLURAL_DETERMINERS", "MASS_DETERMINERS", "PRONOUNS", "TIMES"):
        monkeypatch.setattr(grammar, name, getattr(grammar, name)[::7])
    rng, known, repeated = random.Random(fresh_seed), {}, 0
    for _ in range(50_000):
        example = grammar.sample(rng)
        repeated += example.english in known
        assert known.setdefault(example.english, example) == example
    assert repeated > 1500


def test_toy_splits_are_disjoint_and_complete(corpus):
    english = {split: {example.english for example in examples} for split, examples in corpus.items()}
    assert {split: len(sentences) for split, sentences in english.items()} == SIZES
    assert len(set.union(*english.values())) == sum(SIZES.values())


def test_toy_smaller_corpus_is_prefix_of_larger(corpus):
    problem = load_problem("toy_ende", train_pairs=100)
    assert list(problem.pairs("train")) == [example[1:] for example in corpus["train"][:100]]
    assert list(problem.pairs("test")) == [example[1:] for example in corpus["test"]]


def test_toy_pairs_are_the_same_everywhere(corpus):
    """Check that the pairs do not depend on Python's string hashes, which differ between processes."""
    pairs = [tuple(example[1:]) for example in corpus["validation"]]
    digest = hashlib.sha256(repr(pairs).encode()).hexdigest()
    assert digest == "d0e867e25ec74b5110bbc7ca04137f520b7ea60c7c2b90b2f679d82467183872"


def test_toy_texts_are_sentences(corpus):
    lengths = [len(example.english.split()) for example in corpus["train"]]
    assert 8 <= sum(lengths) / len(lengths) <= 12.5
    assert sum(4 <= length <= 20 for length in lengths) > 0.95 * len(lengths)
    for example in corpus["train"]:
        for text in example[1:]:
            assert re.fullmatch(r"[A-ZÄÖÜ]\w*(,? \w+)+\.", text), text


def test_toy_english_matches_tree_leaves(corpus):
    labels = collections.Counter()

    def visit(tree):
        labels[tree[0]] += 1
        assert len(tree) > 1
        for child in tree[1:]:
            assert isinstance(child, tuple) or len(tree) == 2
            if isinstance(child, tuple):
                visit(child)

    for example in corpus["test"]:
        visit(example.tree)
        assert grammar.leaves(example.tree) == re.findall(r"\w+|[.,]", example.english.replace("cannot", "can not"))
    phrases = {"S", "SBAR", "NP", "VP", "PP", "ADJP", "ADVP", "WHNP", "WHPP"}
    words = {"DT", "CD", "JJ", "NN", "NNS", "NNP", "PRP", "PRP$", "IN", "CC", "RB", "WDT", "WP"}
    assert set(labels) == phrases | words | {"VB", "VBZ", "VBP", "VBN", "MD", ",", "."}


def test_toy_lexicon_has_no_rare_words(corpus):
    for side, least in (("english", 50), ("german", 3)):
        counts = collections.Counter(word for example in corpus["train"] for word in words_of(getattr(example, side)))
        assert 200 <= len(counts) <= 450
        assert min(counts.values()) >= least, counts.most_common()[-5:]


def test_toy_grammar_has_millions_of_sentences():
    """Count only the sentences "SUBJECT sees OBJECT." by multiplying the numbers of subjects and objects."""

    def count(case, kinds):
        texts = set()
        for noun in grammar.NOUNS:
            if noun.kind in kinds and "mass" not in noun.features:
                adjectives = [None, *grammar.ADJECTIVES_OF[noun.kind]]
                for plural, adjective in itertools.product((False, True), adjectives):
                    for determiner in POOLS[plural]:
                        phrase = grammar.noun_phrase(case, determiner, noun, plural, adjective)
                        texts.add(" ".join(grammar.leaves(phrase.english)))
        assert not any(word in text.split() for text in texts for word in verb.english)
        return len(texts)

    verb = next(verb for verb in grammar.VERBS if verb.english[0] == "see")
    assert count(NOMINATIVE, verb.subjects) * count(ACCUSATIVE, verb.objects) > 10**6


def test_toy_corpus_fills_vocabulary():
    problem = load_problem("toy_ende", train_pairs=1000)
    tokenizer = problem.make_tokenizer()
    assert tokenizer.vocab_size == problem.vocab_size
    texts = [text for pair in problem.pairs("train") for text in pair]
    assert tokenizer.decode(tokenizer.encode(texts)) == texts
