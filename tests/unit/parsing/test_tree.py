"""Tests of trees: bracket notation, normalization and linearization."""

import itertools

import pytest
from helpers.trees import delinearize, spans
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.parsing import normalize
from keras_transformer.parsing.linearize import linearize, repaired
from keras_transformer.parsing.normalize import icelandic, penn
from keras_transformer.parsing.tree import DEEPEST, Tree, escaped, read_trees, tree_of, unescaped
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.text import split_words

WORKS = tree_of("(S (NP (PRP it)) (VP (VBZ works)))")
quick = settings(deadline=None, max_examples=100)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" \t\n\r\f\v()"), min_size=1, max_size=8)


def trees_of(labels, tags, words):
    """Return a Hypothesis strategy for trees with the given labels, tags and words."""
    leaves = st.builds(lambda tag, word: Tree(tag, (), word), tags, words)

    def constituents(inside):
        return st.builds(Tree, labels, st.lists(inside, min_size=1, max_size=4).map(tuple), st.none())

    return constituents(st.recursive(leaves, constituents, max_leaves=15))


anything = trees_of(texts | st.just(""), texts, texts)


def words_of(tree):
    """Return the unescaped words of a tree."""
    return [unescaped(word) for word in tree.words()]


def nodes(tree):
    return [tree, *(node for child in tree.children for node in nodes(child))]


def nested(depth):
    """Return the text of a tree with one word inside `depth` brackets, including the bracket of its tag."""
    return "(S " * (depth - 1) + "(NN a)" + ")" * (depth - 1)


# Brackets


@pytest.mark.parametrize(
    "text",
    [
        "(S (NP (PRP it)) (VP (VBZ works)))",
        "(S\n  (NP (PRP it))\n  (VP (VBZ works)))",
        "\n\n( S(NP(PRP it))\t(VP\n(VBZ\nworks\n) ) )\r\n\n",
        "(\nS (NP (PRP it)) (VP (VBZ works) \n)\n)",
    ],
)
def test_tree_may_span_lines(text):
    assert tree_of(text) == WORKS
    np, vp = WORKS.children
    assert (WORKS.label, WORKS.word, np.label, vp.label) == ("S", None, "NP", "VP")
    assert vp.children == (Tree("VBZ", (), "works"),) and np.words() == ["it"]


@pytest.mark.parametrize("text", ["( (S (NN a) ) )", "((S (NN a)))", "(\n  (S (NN a))\n)"])
def test_outer_penn_bracket_has_no_label(text):
    tree = tree_of(text)
    assert tree == Tree("", (Tree("S", (Tree("NN", (), "a"),)),)) and str(tree) == "( (S (NN a)))"


def test_trees_may_share_lines():
    lines = ["", "(A (NN a)) (B", "(NN b)) (C", "", " (NN c)", ") (D (NN d))"]
    assert list(map(str, read_trees(lines))) == ["(A (NN a))", "(B (NN b))", "(C (NN c))", "(D (NN d))"]
    assert list(read_trees([])) == list(read_trees(["", " \t"])) == []


def test_read_trees_is_lazy():
    lines = itertools.count()  # an infinite iterator
    trees = read_trees("(S (NP (PRP it))" if number % 2 == 0 else "(VP (VBZ works)))" for number in lines)
    assert [next(trees), next(trees)] == [WORKS, WORKS] and next(lines) == 4


def test_no_break_space_belongs_to_word():
    tree = tree_of("(S (CD 10\u00a0000) (NN a\u2003b))")
    assert tree.words() == ["10\u00a0000", "a\u2003b"] and tree_of(str(tree)) == tree
    assert split_words(" 10\u00a0000\ta\u2003b \n") == tree.words()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["(S (NN a))", "(S (NN a)", "", "(NN b)"], "2: the tree that begins here is not closed: 1 missing ')'"),
        (["(S (NP (NN a"], "1: the tree that begins here is not closed: 3 missing ')'"),
        (["(S (NN a))", " (S (NN a)))"], "2: ')' is outside of the trees. Begin each tree with '('."),
        (["(S (NN a))", "word (S (NN a))"], "2: 'word' is outside of the trees. Begin each tree with '('."),
        (["(S", " ())"], "2: () is empty. Write each word as (TAG word)."),
        (["(S (NN a)", " (NP", "))"], "3: (NP) is empty. Write each word as (TAG word)."),
        (["(S (NN a) b)"], "1: 'b' has no tag. Write each word as (TAG word)."),
        (["(S", "b (NN a))"], "2: 'b' has no tag. Write each word as (TAG word)."),
        (["(NN a b)"], "1: 'a' has no tag. Write each word as (TAG word)."),
        (["((NN a) b)"], "1: 'b' has no tag. Write each word as (TAG word)."),
        (
            ["", nested(DEEPEST + 1)],
            f"2: brackets must be nested at most {DEEPEST} deep. Check that each one is closed.",
        ),
        (
            ["(S"] * (DEEPEST + 1),
            f"{DEEPEST + 1}: brackets must be nested at most {DEEPEST} deep. Check that each one is closed.",
        ),
    ],
)
def test_read_trees_names_line_of_error(lines, said):
    with pytest.raises(UserError) as error:
        list(read_trees(lines, "wsj.mrg"))
    assert str(error.value) == f"wsj.mrg:{said}"


@pytest.mark.parametrize(("text", "count"), [("", 0), ("(S (NN a)) (S (NN b))", 2)])
def test_tree_of_rejects_none_or_several_trees(text, count):
    with pytest.raises(UserError, match=f"must contain one tree, got {count}"):
        tree_of(text)


def test_deepest_tree_is_handled():
    tree = tree_of(nested(DEEPEST))
    assert tree_of(tree.pretty()) == tree == penn(tree) == icelandic(tree) and str(tree) == nested(DEEPEST)
    assert spans(tree) == [("S", 0, 1)] * (DEEPEST - 1)
    assert delinearize(linearize(tree), ["a"]) == tree
    (within,) = tree.children
    assert repaired(linearize(within), ["a"]) == within


@pytest.mark.parametrize("symbols", [["(S"] * 5000 + ["NN"], ["NN"] + ["(S"] * 5000 + ["NN"]])
def test_repaired_trees_have_readable_depth(symbols):
    tree = repaired(symbols, ["a", "b"][: symbols.count("NN")])
    assert tree_of(str(tree)) == tree and str(tree).count("(S ") == DEEPEST - 2


@quick
@given(anything)
def test_tree_round_trip(tree):
    assert tree_of(str(tree)) == tree
    assert "\n" not in str(tree)


@quick
@given(anything, st.integers(1, 60))
def test_pretty_keeps_tree_within_width(tree, width):
    lines = tree.pretty(width=width).split("\n")
    assert tree_of("\n".join(lines)) == tree
    assert all(line.count("(") == 1 for line in lines if len(line) > width)  # a label or a tagged word alone
    assert tree.pretty(width=len(str(tree))) == str(tree)
    assert tree.pretty(width=len(str(tree)) - 1).startswith(f"({tree.label}\n  (")


def test_pretty_breaks_wide_constituents():
    assert WORKS.pretty(width=33) == "(S\n  (NP (PRP it))\n  (VP (VBZ works)))"
    assert WORKS.pretty(width=18) == "(S\n  (NP (PRP it))\n  (VP\n    (VBZ works)))"  # too narrow for "))"
    assert WORKS.pretty(width=19).count("\n") == 2


def test_brackets_in_words_are_escaped():
    pairs = {"(": "-LRB-", ")": "-RRB-", "{": "-LCB-", "}": "-RCB-", "a(b)": "a-LRB-b-RRB-", ":-)": ":--RRB-"}
    assert {word: escaped(word) for word in pairs} == pairs
    assert {unescaped(word): word for word in pairs.values()} == pairs
    assert (escaped("[x]"), unescaped("-LSB-x-RSB-")) == ("[x]", "[x]")


@quick
@given(st.text("(){}[]aBé", min_size=1))
def test_escaped_words_round_trip(word):
    assert unescaped(escaped(word)) == word and not {*escaped(word)} & {*"(){}"}
    assert escaped(unescaped(escaped(word))) == escaped(word)


# Normalization


@pytest.mark.parametrize(
    ("label", "plain"),
    [("NP", "NP"), ("NP-SBJ", "NP"), ("NP-SBJ-12", "NP"), ("NP=2", "NP"), ("NP-SBJ=2", "NP"), ("NP=2-SBJ", "NP"),
     ("WHNP-1", "WHNP"), ("Q+NUM-N", "Q+NUM"), ("X|Y", "X|Y"), ("-NONE-", "-NONE-"), ("=2", "=2"), ("", "")],
)  # fmt: skip
def test_plain_label_drops_functions_and_indices(label, plain):
    assert normalize.plain_label(label) == plain


def test_without_functions_strips_only_indices_of_tags():
    tree = tree_of("(NP-SBJ (WP-1 a) (NN=2 b) (N-N c) (NS-A-3 d) (-LRB- -LRB-) (PRP$ e) (`` ``))")
    tags = "WP NN N-N NS-A -LRB- PRP$ ``".split()
    assert [leaf.label for leaf in normalize.without_functions(tree).leaves()] == tags


@pytest.mark.parametrize(
    ("tree", "left"),
    [
        ("(S (NP-SBJ (-NONE- *-1)) (VP (TO to) (VP (VB go))))", "(S (VP (TO to) (VP (VB go))))"),
        ("(SBAR (WHNP-1 (-NONE- 0)) (S (NP (NP (-NONE- *T*-1))) (VP (VB go))))", "(SBAR (S (VP (VB go))))"),
        ("(S (NP (NN NONE) (NN -NONE-)))", "(S (NP (NN NONE) (NN -NONE-)))"),
        ("(S (NP-SBJ (-NONE- *)) (VP (-NONE- *?*)))", None),
    ],
)
def test_without_traces_removes_empty_constituents(tree, left):
    assert normalize.without_traces(tree_of(tree)) == (left and tree_of(left))
    assert left or penn(tree_of(tree)) is None


@pytest.mark.parametrize(
    ("tree", "without"),
    [
        ("( (S (NN a)))", "(S (NN a))"),
        ("(TOP (S (NN a)))", "(S (NN a))"),
        ("(ROOT (TOP ( (S (NN a)))))", "(S (NN a))"),
        ("(S (TOP (NN a)))", "(S (TOP (NN a)))"),
        ("( (S (NN a)) (. .))", "(TOP (S (NN a)) (. .))"),
        ("(ROOT (S (NN a)) (S (NN b)))", "(TOP (S (NN a)) (S (NN b)))"),
        ("( (ROOT (NN a) (NN b)))", "(TOP (NN a) (NN b))"),
        ("(ROOT (NN a))", "(TOP (NN a))"),
        ("(NN a)", "(TOP (NN a))"),
        ("(TOP a)", "(TOP (TOP a))"),
    ],
)
def test_without_outer_keeps_only_needed_bracket(tree, without):
    assert normalize.without_outer(tree_of(tree)) == tree_of(without) == normalize.without_outer(tree_of(without))


@pytest.mark.parametrize(
    ("tree", "learned"),
    [
        (
            "( (S (NP-SBJ-1 (NNP Mr.) (NNP Vinken)) (VP (VBZ is) (ADJP-PRD (JJ old)) (S-ADV (NP-SBJ (-NONE- *-1))))))",
            "(S (NP (NNP Mr.) (NNP Vinken)) (VP (VBZ is) (ADJP (JJ old))))",
        ),
        (
            "(ROOT (NP (NN x) (PRN (-LRB- -LRB-) (NN -LSB-y-RSB-) (-RRB- })) (NN {z) (CD 1\\/2)))",
            "(NP (NN x) (PRN (-LRB- -LRB-) (NN [y]) (-RRB- -RCB-)) (NN -LCB-z) (CD 1\\/2))",
        ),
        ("( (S (NN a)) (NP (-NONE- *)))", "(S (NN a))"),
        ("( (NP-HLN (-NONE- 0)) (NN=1 a))", "(TOP (NN a))"),
    ],
)
def test_penn_normalizes_trees(tree, learned):
    assert penn(tree_of(tree)) == tree_of(learned) == penn(tree_of(learned))


@quick
@given(trees_of(st.sampled_from(" S TOP ROOT NP-SBJ NP=1 X-1=2".split(" ")), st.sampled_from(["NN", "N-A", "-NONE-"]),
                st.sampled_from(["a", "-LRB-", "]"])))  # fmt: skip
def test_penn_is_idempotent_on_any_tree(tree):
    words = [leaf.word for leaf in tree.leaves() if leaf.label != "-NONE-"]
    found = penn(tree)
    assert (found.words() if found else []) == words
    if found:
        assert penn(found) == found and found.word is None and found.label
        assert {node.label for node in nodes(found)} <= {"", "S", "TOP", "ROOT", "NP", "X", "NN", "N-A"}


@pytest.mark.parametrize(
    ("leaf", "word"),
    [("maður-maður", "maður"), ("Suðvestur-lands-suðvestur-land", "Suðvestur-lands"), ("a-b-c-a-b-c", "a-b-c"),
     (",-,", ","), ("---", "-"), ("-----", "--"), ("-", "-"), ("mynda--mynd", "mynda-"), ("{með}", "{með}"),
     ("sylgju$", "sylgju$"), ("0-0", "0")],
)  # fmt: skip
def test_without_lemmas_splits_in_the_middle(leaf, word):
    assert normalize.without_lemmas(Tree("IP-MAT", (Tree("N-N", (), leaf),))).words() == [word]


@pytest.mark.parametrize(
    ("tree", "learned"),
    [
        (
            "( (IP-MAT (NP-SBJ (N-N Fjörbaugsgarður-fjörbaugsgarður)) (VBPI varðar-varða) (PP (P ef-ef) (CP-ADV (C 0) "
            "(IP-SUB-1 (NP-SBJ *con*) (WNP-2 0) (VBPI hleypur-hlaupa) (NP-OB1 *T*-2)))) (. .-.)) "
            "(ID 1270.GRAGAS.LAW-LAW,.2))",
            "(IP (NP (N-N Fjörbaugsgarður)) (VBPI varðar) (PP (P ef) (CP (IP (VBPI hleypur)))) (. .))",
        ),
        ("( (IP-MAT (NP=1 (NUM-N 0-0)) (CODE <heading>)) (CODE x) (ID a,.1))", "(IP (NP (NUM-N 0)))"),
        ("( (IP-MAT (PRO-N þau-það)) (, -) (. ---) (ID a,.1))", "(TOP (IP (PRO-N þau)) (, -) (. -))"),
        ("( (. ?-?) (ID a,.1))", "(TOP (. ?))"),
        ("( (FRAG (P {með}) (PP (CODE {COM:dash}))))", "(FRAG (P -LCB-með-RCB-))"),
        ("( (META (CODE <heading>) (NP (N-N LÖG-lög))) (ID a,.1))", None),
        ("( (IP-MAT (NP-SBJ *pro*) (VP (VB 0))) (ID a,.1))", None),
    ],
)
def test_icelandic_normalizes_trees(tree, learned):
    assert icelandic(tree_of(tree)) == (learned and tree_of(learned))


# Linearization


def test_linearize_gives_brackets_and_tags():
    assert " ".join(linearize(WORKS)) == "(S (NP PRP )NP (VP VBZ )VP )S"
    assert " ".join(linearize(WORKS, tags=False)) == "(S (NP XX )NP (VP XX )VP )S"


with_escapes = trees_of(texts | st.just(""), texts, st.text("(){}[]aé", min_size=1, max_size=5).map(escaped))


@quick
@given(with_escapes)
def test_delinearize_inverts_linearize(tree):
    words = words_of(tree)
    assert delinearize(linearize(tree), words) == repaired(linearize(tree), words) == tree
    untagged = delinearize(linearize(tree, tags=False), words)
    assert spans(untagged) == spans(tree) and untagged.words() == tree.words()
    assert {leaf.label for leaf in untagged.leaves()} == {"XX"}
    assert untagged == repaired(linearize(tree, tags=False), words)


@pytest.mark.parametrize(
    ("symbols", "said"),
    [
        ("", "there is no symbol"),
        ("(S NN NN", "(S is not closed"),
        ("(S (NP NN NN )S", ")S closes (NP"),
        ("(S NN NN )S )S", ")S closes nothing"),
        (")S", ")S closes nothing"),
        ("(S NN (NP )NP NN )S", "(NP is empty"),
        ("(S NN NN NN )S", "NN has no word"),
        ("(S NN )S", "there are more words than tags"),
        ("(S NN )S NN", "NN stands outside of all brackets"),
        ("NN NN", "NN stands outside of all brackets"),
        ("(S NN NN )S (S", "(S comes after the end"),
    ],
)
def test_delinearize_rejects_invalid_symbols(symbols, said):
    with pytest.raises(ValueError) as error:
        delinearize(symbols.split(), ["a", "b"])
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("symbols", "tree"),
    [
        ("", "(TOP (XX a) (XX b))"),
        ("(S (NP", "(S (NP (XX a) (XX b)))"),
        ("(S (NP NN )S NN", "(TOP (S (NP (NN a))) (NN b))"),
        ("(S NN )VP NN )S", "(S (NN a) (NN b))"),
        (")TOP (S NN NN )TOP )S", "(S (NN a) (NN b))"),
        ("(S NN NN NN )S NN", "(S (NN a) (NN b))"),
        ("(S (NP NN )NP )S", "(TOP (S (NP (NN a))) (XX b))"),
        ("(S (NP )NP NN NN )S (VP", "(S (NN a) (NN b))"),
        ("(S (NP (S NN )S )S NN", "(TOP (S (NP (S (NN a)))) (NN b))"),
        ("NN NN", "(TOP (NN a) (NN b))"),
        ("(TOP NN NN )TOP", "(TOP (NN a) (NN b))"),
        ("(TOP NN )TOP (S NN", "(TOP (TOP (NN a)) (S (NN b)))"),
    ],
)
def test_repaired_examples(symbols, tree):
    assert repaired(symbols.split(), ["a", "b"]) == tree_of(tree)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from("(S )S (NP )NP (TOP )TOP NN XX".split()), max_size=40),
    st.lists(st.sampled_from(["a", "(", "-LRB-", "½"]), min_size=1, max_size=10),
)
def test_repaired_covers_all_words(symbols, words):
    tree = repaired(symbols, words)
    assert tree.words() == [escaped(word) for word in words]
    assert tree.word is None and tree_of(str(tree)) == tree
    tags = [symbol for symbol in symbols if symbol[0] not in "()"][: len(words)]
    assert [leaf.label for leaf in tree.leaves()] == tags + ["XX"] * (len(words) - len(tags))
    try:
        assert delinearize(symbols, words) == tree
    except ValueError:
        assert linearize(tree) != symbols
