"""benchmarks/parsing_baselines.py: CKY against all derivations, and that each parser's outputs are trees."""

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
from keras_transformer.errors import UserError
from keras_transformer.tasks import load_problem
from keras_transformer.trees.tree import Tree, tree_of

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


def test_a_beam_finds_nothing_better(grammar):
    words = "I saw the man with the saw .".split()
    exact = grammar.parse(words, math.inf)
    assert grammar.parse(words) == exact
    assert all(found is None or found[0] <= exact[0] for found in (grammar.parse(words, beam) for beam in (0, 1, 3)))


def test_best_chains_are_the_shortest_paths():
    rules = {
        ("A", ("B",)): -1.0,
        ("B", ("C",)): -1.0,
        ("A", ("C",)): -3.0,
        ("C", ("A",)): -0.5,
        ("C", ("A", "B")): -9.0,
    }
    chains = baselines.best_chains("ABC", rules)
    assert chains["A", "C"] == (-2.0, ("A", "B", "C"))
    assert chains["B", "A"] == (-1.5, ("B", "C", "A"))
    assert all(chains[symbol, symbol] == (0.0, (symbol,)) for symbol in "ABC")


labels = st.sampled_from(["S", "NP", "@", "|", "ADVP|PRT"])
preterminals = st.builds(Tree, labels, st.just(()), st.sampled_from(["a", "B1", "-LRB-"]))
trees = st.recursive(
    preterminals,
    lambda inner: st.builds(Tree, labels, st.lists(inner, min_size=1, max_size=5).map(tuple), st.none()),
    max_leaves=12,
).filter(lambda tree: tree.word is None)


@given(trees)
def test_unbinarised_undoes_binarised(tree):
    binary = baselines.binarised(tree)
    assert baselines.unbinarised(binary) == tree

    def widths(tree):
        return [len(tree.children), *(width for child in tree.children for width in widths(child))]

    assert max(widths(binary)) <= 2


def test_what_follows_a_first_child_knows_the_last_two():
    tree = tree_of("(X (A a) (B b) (C c) (D d) (E e))")
    labels = [symbol for symbol, _, _ in baselines.binarised(tree).spans()]
    assert labels == [
        baselines.ROOT, ("X", "", ()), ("X", "", ("A",)), ("X", "", ("A", "B")), ("X", "", ("B", "C"))
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text, expected",
    [
        ("D N V R .", "(X (D D) (X (N N) (X (V V) (R R))) (. .))"),
        ("N V . ''", "(X (N N) (V V) (. .) ('' ''))"),
        ("N , V", "(X (N N) (X (, ,) (V V)))"),
        ("N .", "(X (N N) (. .))"),
        ("N", "(X (N N))"),
        (". .", "(X (. .) (. .))"),
    ],
)
def test_right_branching_trees(text, expected):
    words = text.split()
    assert str(baselines.right_branching(words, words, "X")) == expected


@pytest.mark.parametrize(
    "text", ["I saw", "unseen", ". . .", "the the the the the", "Unseen12 -LRB- man saw-saw , I !"]
)
@pytest.mark.parametrize("max_words", [1, 150])
def test_every_output_is_a_tree_over_the_words(text, max_words):
    both = baselines.Baselines([tree_of(line) for line in TREES], max_words)
    for parser in (both.right_branching, both.pcfg):
        tree, fallback = parser(text.split())
        assert tree_of(str(tree)) == tree and tree.word is None and tree.words() == text.split()
        assert all(isinstance(label, str) for label, _, _ in tree.spans())
        if parser == both.pcfg and len(text.split()) > max_words:
            assert fallback and tree == both.right_branching(text.split())[0]


def test_sentences_that_are_too_long_fall_back():
    words = "I saw the man .".split()
    for max_words, expected in ((4, True), (5, False)):
        tree, fallback = baselines.Baselines([tree_of(line) for line in TREES], max_words).pcfg(words)
        assert fallback == expected and (tree.label == "NP") == expected


def test_unknown_words_get_the_tags_of_rare_ones_of_their_kind():
    text = "(S (NNP Ann) (VBZ sees) (CD 12) (NN weighing) (NN saying) (VBG saying) (NN a) (NN a) (VB a))"
    lexicon = baselines.Grammar([tree_of(text)]).lexicon
    tags = {"Inn": "NNP", "99": "CD", "12": "CD", "a": "NN", "saying": "NN"}
    assert {word: lexicon.most_frequent_tag(word) for word in tags} == tags
    nn, vb = baselines.Symbol("NN", "S"), baselines.Symbol("VB", "S")  # "a" is half of all NN, and the only VB
    assert lexicon.chances("a")[nn] > lexicon.chances("a")[vb] and lexicon.scores("a")[nn] < lexicon.scores("a")[vb]
    for word in ("a", "Inn", "never-seen", "%"):
        assert sum(lexicon.chances(word).values()) == pytest.approx(1)


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


def test_a_grammar_of_the_toy_problem_parses_it(small):
    right, pcfg = small[1]
    assert (right["parser"], pcfg["parser"]) == ("right_branching", "pcfg")
    assert pcfg["f1"] > 90 > 50 > right["f1"] > 0
    for row in small[1]:
        assert row["part"] == "all" and row["sentences"] == 50 and row["errors"] == row["fallbacks"] == 0
        assert {"command", "commit", "machine", "date", "recall", "precision", "complete_match"} <= set(row)


def test_evaluate_gives_the_same_figures_of_the_files(small, capsys):
    folder, rows = small
    for row in rows:
        evaluate.main([f"--gold={folder / 'gold.txt'}", f"--test={folder / row['parser']}.txt", "--json"])
        figures = json.loads(capsys.readouterr().out)
        assert {name: round(figures[name], 2) for name in baselines.FIGURES} == {
            name: row[name] for name in baselines.FIGURES
        }


def test_treebanks_have_rows_of_their_own(tmp_path, capsys):
    (tmp_path / "gum").mkdir()
    for number in (1, 180, 190, 191):
        (tmp_path / f"wsj_{number:04}.mrg").write_text(f"( {TREES[0]} )\n( {TREES[1]} )\n")
    (tmp_path / "gum" / "splits.md").write_text("## train\n* GUM_a\n## dev\n* GUM_b\n## test\n* GUM_c\n")
    for name in "abc":
        (tmp_path / "gum" / f"GUM_{name}.ptb").write_text(f"{TREES[2]}\n")
    baselines.main(["--problem=parsing_english", f"--raw_dir={tmp_path}", f"--json={tmp_path / 'rows.jsonl'}"])
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["part"], row["parser"], row["sentences"]) for row in rows] == [
        (part, parser, count)
        for part, count in (("all", 5), ("wsj", 4), ("gum", 1))
        for parser in ("right_branching", "pcfg")
    ]
    assert rows[5]["f1"] == 100
    assert "right_branching" in capsys.readouterr().out


def test_a_problem_without_trees_is_refused():
    with pytest.raises(UserError, match="toy_ende.* has no trees"):
        baselines.main(["--problem=toy_ende"])
