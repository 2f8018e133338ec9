"""What trees of treebanks need before they are alike: each step is a function from a `Tree` to a `Tree`, or to None
where nothing is left of it.
"""

import re

from keras_transformer.parsing.tree import Tree, escaped, unescaped

OUTER = ("", "TOP", "ROOT")
"""Labels of the bracket that some treebanks put around a whole tree."""

_EMPTY = re.compile(r"0|\*.*", re.DOTALL)  # IcePaHC: a zero, or what begins with an asterisk: *T*-1, *pro*
_INDEX = re.compile(r"[-=]\d+$")


def without_leaves(tree, unwanted):
    """Return the tree without the leaves for which the function `unwanted` is true, and what they leave empty."""
    if tree.word is not None:
        return None if unwanted(tree) else tree
    children = tuple(kept for child in tree.children if (kept := without_leaves(child, unwanted)))
    return Tree(tree.label, children) if children else None


def without_traces(tree):
    """Return the tree without traces, the leaves of tag -NONE-, and the constituents that they leave empty."""
    return without_leaves(tree, lambda leaf: leaf.label == "-NONE-")


def without_outer(tree):
    """Return the tree without the outer bracket "", TOP or ROOT; over several parts, or a word alone, it is TOP."""
    if tree.word is not None:
        return Tree("TOP", (tree,))
    if tree.label not in OUTER:
        return tree
    if len(tree.children) == 1 and tree.children[0].word is None:
        return without_outer(tree.children[0])
    return Tree("TOP", tree.children)


def without_functions(tree):
    """Return the tree without functional tags and indices: NP for NP-SBJ-1 and NP=2; words' tags lose indices only."""
    if tree.word is not None:
        return tree._replace(label=_INDEX.sub("", tree.label))
    return Tree(plain_label(tree.label), tuple(map(without_functions, tree.children)))


def plain_label(label):
    """Return a label as far as the first "-" or "="; all of it where that is its first character: "-NONE-"."""
    return label if label[:1] in ("-", "=") else re.split("[-=]", label, maxsplit=1)[0]


def without_lemmas(tree):
    """Return a tree of IcePaHC, whose leaves are `word-lemma`, with the words alone.

    Word and lemma have as many hyphens of their own, where they have any, so the one in the middle parts them.
    """
    if tree.word is None:
        return Tree(tree.label, tuple(map(without_lemmas, tree.children)))
    parts = tree.word.split("-")
    half = (len(parts) + 1) // 2
    return tree._replace(word="-".join(parts[:half])) if parts[0] or half > 1 else tree


def without_empty_icelandic(tree):
    """Return a tree of IcePaHC without traces and empty elements, and without what is no word: ID, CODE and META."""
    tree = without_labels(tree, ("ID", "CODE", "META"))
    return tree and without_leaves(tree, lambda leaf: _EMPTY.fullmatch(leaf.word))


def without_labels(tree, labels):
    """Return the tree without the constituents and leaves that have one of `labels`, and what they leave empty."""
    if tree.label in labels:
        return None
    if tree.word is not None:
        return tree
    children = tuple(kept for child in tree.children if (kept := without_labels(child, labels)))
    return Tree(tree.label, children) if children else None


def with_escapes(tree):
    """Return the tree with words as `escaped` writes them, however they were written."""
    if tree.word is not None:
        return tree._replace(word=escaped(unescaped(tree.word)))
    return Tree(tree.label, tuple(map(with_escapes, tree.children)))


def penn(tree):
    """Return a tree of the Penn Treebank, or of one in its format, as it is learned; None if it has no word."""
    tree = without_traces(tree)
    return tree and without_outer(without_functions(with_escapes(tree)))


def icelandic(tree):
    """Return a tree of IcePaHC as it is learned; None if it has no word."""
    tree = without_empty_icelandic(tree)
    return tree and without_outer(without_functions(with_escapes(without_lemmas(tree))))
