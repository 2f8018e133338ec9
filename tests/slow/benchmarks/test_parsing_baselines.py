"""benchmarks/parsing_baselines.py: CKY compared with all derivations, and the figures of a small run."""

import functools
import itertools
import json
import math
import random
import sys

import pytest
from helpers.paths import ROOT
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer import evaluate
from keras_transformer.parsing.tree import Tree, tree_of
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.errors import UserError

sys.path.insert(0, str(ROOT / "benchmarks"))
import parsing_baselines as baselines  # noqa: E402

TREES = [
    "(S (NP (PRP I)) (VP (VBD saw) (NP (NP (DT the) (NN man)) (PP (IN with) (NP (DT the) (NN saw))))) (. .))",
    "(S (NP (PRP I)) (VP (VBD saw) (NP (DT the) (NN man)) (PP (IN with) (NP (NN saw)))) (. .))",
    "(S (S (VP (VB saw))) (CC and) (S (NP (DT the) (NN man)) (VP (VBD saw))) (. !))",
    "(S (VP (VP (VB saw) (NP (NP (NN man)))) (CC and) (VP (S (VP (VB saw))))))",
    "(NP (NP (DT the) (NN man)) (, ,) (NP (DT the) (NN saw)) (, ,) (CC and) (NP (PRP I)) (. .))",
]
WORDS = ["unseen", *sorted({word for text in TREES for word in tree_of(text).words()})]


@pytest.fixture(scope="module")
def grammar():
    return baselines.Grammar([tree_of(text) for text in TREES])


def derivations(grammar, words, symbol):
    """Log probabilities of all derivations of words from a symbol; unary rules do not come back to one."""

    @functools.cache
    def scores(symbol, start, end, above=()):
        found = []
        if end - start == 1 and symbol in (tags := grammar.lexicon.scores(words[start])):
            found.append(tags[symbol])
        for (parent, children), score in grammar.rules.items():
            if parent == symbol and len(children) == 1 and children[0] not in above:
                found += [score + inner for inner in scores(children[0], start, end, (*above, symbol))]
            elif parent == symbol and len(children) == 2:
                for middle in range(start + 1, end):
                    parts = scores(children[0], start, middle), scores(children[1], middle, end)
                    found += [score + left + right for left, right in itertools.product(*parts)]
        return found

    return scores(symbol, 0, len(words))


def sample(grammar, rng, symbol=baselines.ROOT):
    """Words that the grammar derives, by its probabilities."""
    rules = {children: math.exp(score) for (parent, children), score in grammar.rules.items() if parent == symbol}
    if not rules:
        return [rng.choice([word for word in WORDS if grammar.lexicon.of.get(word, {}).get(symbol)])]
    children = rng.choices(list(rules), list(rules.values()))[0]
    return [word for child in children for word in sample(grammar, rng, child)]


def score_of(grammar, tree):
    """Log probability of a binarised tree."""
    if tree.word is not None:
        return grammar.lexicon.scores(tree.word)[tree.label]
    own = grammar.rules[tree.label, tuple(child.label for child in tree.children)]
    return own + sum(score_of(grammar, child) for child in tree.children)


def test_cky_finds_the_best_of_all_derivations(grammar, fresh_seed):
    rng, ambiguous = random.Random(fresh_seed), 0
    sentences = [words for _ in range(60) if len(words := sample(grammar, rng)) <= 12]
    sentences += [rng.choices(WORDS, k=rng.randint(1, 6)) for _ in range(20)]
    for words in sentences:
        scores = derivations(grammar, words, baselines.ROOT)
        found = grammar.parse(words, math.inf)
        assert bool(scores) == bool(found), words
        if found:
            score, tree = found
            assert score == pytest.approx(max(scores), abs=1e-4)
            assert score == pytest.approx(score_of(grammar, tree), abs=1e-4)
            assert baselines.unbinarised(tree).words() == words
            ambiguous += len(scores) > 1
    assert ambiguous >= 20


labels = st.sampled_from(["S", "NP", "@", "|", "ADVP|PRT"])
preterminals = st.builds(Tree, labels, st.just(()), st.sampled_from(["a", "B1", "-LRB-"]))
trees = st.recursive(
    preterminals,
    lambda inner: st.builds(Tree, labels, st.lists(inner, min_size=1, max_size=5).map(tuple), st.none()),
    max_leaves=12,
).filter(lambda tree: tree.word is None)


@given(trees)
def test_unbinarised_inverts_binarised(tree):
    binary = baselines.binarised(tree)
    assert baselines.unbinarised(binary) == tree

    def widths(tree):
        return [len(tree.children), *(width for child in tree.children for width in widths(child))]

    assert max(widths(binary)) <= 2


@pytest.fixture(scope="module")
def small(monkeypatch_module, tmp_path_factory):
    """The files and rows of a run on the first trees of toy_parsing."""
    problem = type(load_problem("toy_parsing"))
    whole = problem.trees
    monkeypatch_module.setattr(problem, "trees", lambda self, split: first(whole(self, split), split))
    folder = tmp_path_factory.mktemp("baselines")
    baselines.main([f"--output_dir={folder}", f"--json={folder / 'rows.jsonl'}"])
    return folder, [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def first(trees, split):
    return [tree for tree, _ in zip(trees, range({"train": 1500, "test": 50}[split]))]


def test_baselines_parse_the_toy_problem(small):
    right, pcfg = small[1]
    assert (right["parser"], pcfg["parser"]) == ("right_branching", "pcfg")
    assert pcfg["f1"] > 90 > 50 > right["f1"] > 0
    for row in small[1]:
        assert row["part"] == "all" and row["sentences"] == 50 and row["errors"] == row["fallbacks"] == 0
        assert {"command", "commit", "machine", "date", "recall", "precision", "complete_match"} <= set(row)


def test_baselines_write_the_figures_of_evaluate(small, capsys):
    folder, rows = small
    for row in rows:
        evaluate.main([f"--gold={folder / 'gold.txt'}", f"--test={folder / row['parser']}.txt", "--json"])
        figures = json.loads(capsys.readouterr().out)
        assert {name: round(figures[name], 2) for name in baselines.FIGURES} == {
            name: row[name] for name in baselines.FIGURES
        }


def test_baselines_reject_a_problem_without_trees():
    with pytest.raises(UserError, match="toy_ende.* has no trees"):
        baselines.main(["--problem=toy_ende"])
