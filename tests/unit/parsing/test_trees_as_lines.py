"""Tests of `trees_as_lines`, which writes each tree on one line."""

import pytest

from keras_transformer.parsing.parseval import parseval, trees_as_lines
from keras_transformer.utils.errors import UserError


def test_trees_as_lines_joins_lines_of_a_tree():
    treebank = ["( (S ", "    (NP (N a) )", "", "    (VP (V is))) )", "", "(X (N b))", "(Y", "(N c)) (Z (N d))"]
    lines = trees_as_lines(treebank, "wsj.mrg")
    assert lines == ["( (S (NP (N a)) (VP (V is))))", "(X (N b))", "(Y (N c))", "(Z (N d))"]
    assert parseval(lines, ["(S (NP (N a)) (VP (V is)))", *lines[1:]]).complete_match == 100


def test_trees_as_lines_keeps_balanced_lines():
    lines = ["(S (N a)) (S (N b))", "", "no brackets", "(S\t(N a))"]
    assert trees_as_lines(iter(lines), "a.parse") == lines


def test_trees_as_lines_keeps_unbalanced_parse_separate():
    lines, tree = ["(S (N a)", "", "(S (N a))", "(S (N a)))"], "(S (N a))"
    assert trees_as_lines(lines, "a.parse", [tree] * 4) == lines
    # If the number of lines differs from the gold file, a tree may span several lines.
    joined = ["(S (N a) (S (N a)) (S (N a)))"]
    assert trees_as_lines(lines, "a.parse") == trees_as_lines(lines, "a.parse", [tree] * 3) == joined


@pytest.mark.parametrize("ends", [([""], []), ([], [""]), ([""], ["", ""]), ([""], ["(S (N a))"]), (["(N a)"], [""])])
def test_trees_as_lines_ignores_blank_lines_at_end(ends):
    golds, lines = (["(S (N a))", "(S (N b))", *end] for end in ends)
    lines[0] = "(S (N a)"
    assert trees_as_lines(lines, "a.parse", golds) == lines
    assert parseval(golds, lines).errors > 0


def test_trees_as_lines_rejects_malformed_trees():
    with pytest.raises(UserError, match=r"^wsj.mrg:2: .*not closed"):
        trees_as_lines(["(S (N a))", "(S", "(N b)"], "wsj.mrg")
    with pytest.raises(UserError, match=r"^wsj.mrg:3: '\)' is outside"):
        trees_as_lines(["(S (N a))", "(S (N b))", ") (S (N c))("], "wsj.mrg")


def test_trees_as_lines_joins_trees_despite_blank_gold_lines():
    golds = ["(S (A a) (B b))", "(S (A c))", "", "", ""]
    lines = ["(S (A a)", "   (B b))", "(S (A c))"]
    assert [*trees_as_lines(lines, "test", golds)] == ["(S (A a) (B b))", "(S (A c))"]


@pytest.mark.parametrize("golds", [["(S (A a))", "", "(S (B b))"], ["(S (A a))", "(S (B b))"]])
@pytest.mark.parametrize(
    "lines",
    [
        ["(S (A a))", "(S (B b))"], ["(S (A a))", "", "", "(S (B b))"], ["(S", "(A a))", "", "(S (B b))"],
        ["(S (A a))", "(S (B b))", ""],
    ],
    ids=["lines", "blank", "several", "end"],
)  # fmt: skip
def test_trees_as_lines_matches_despite_blank_lines(golds, lines):
    found = trees_as_lines(lines, "test", golds)
    assert found[: len(golds)] == golds
    result = parseval(golds, found)
    assert (result.f1, result.valid, result.errors) == (100.0, 2, 0)


def test_trees_as_lines_keeps_blank_parse_of_a_sentence():
    golds, lines = ["(S (A a))", "(S (B b))", "(S (C c))"], ["(S (A a))", "", "(S (C c))"]
    assert trees_as_lines(lines, "test", golds) == lines
    assert trees_as_lines(lines, "test", [*golds, "(S (D d))"]) == lines
