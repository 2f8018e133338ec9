"""Normalization of treebank trees. Each function maps a `Tree` to a `Tree`, or to None if nothing remains."""

import re

from keras_transformer.parsing.tree import Tree, escaped, unescaped

OUTER = ("", "TOP", "ROOT")
"""Labels of the outer bracket that some treebanks put around a tree."""

_EMPTY = re.compile(r"0|\*.*", re.DOTALL)  # empty elements in IcePaHC, such as 0, *T*-1 and *pro*
_INDEX = re.compile(r"[-=]\d+$")


def without(tree, unwanted):
    """Remove parts for which the function `unwanted` returns true, and constituents that become empty."""
    if unwanted(tree):
        return None
    if tree.word is not None:
        return tree
    children = tuple(kept for child in tree.children if (kept := without(child, unwanted)))
    return Tree(tree.label, children) if children else None


def without_traces(tree):
    """Remove traces, which are leaves with the tag -NONE-, and constituents that become empty."""
    return without(tree, lambda part: part.word is not None and part.label == "-NONE-")


def without_outer(tree):
    """Remove outer brackets labeled "", TOP or ROOT. If several constituents or one word remain, add a bracket TOP."""
    if tree.word is not None:
        return Tree("TOP", (tree,))
    if tree.label not in OUTER:
        return tree
    if len(tree.children) == 1 and tree.children[0].word is None:
        return without_outer(tree.children[0])
    return Tree("TOP", tree.children)


def without_functions(tree):
    """Remove function tags and indices from labels: NP-SBJ-1 and NP=2 become NP. Word tags lose only indices."""
    if tree.word is not None:
        return tree._replace(label=_INDEX.sub("", tree.label))
    return Tree(plain_label(tree.label), tuple(map(without_functions, tree.children)))


def plain_label(label):
    """Cut a label at the first "-" or "=", unless it begins with one of these characters, like "-NONE-"."""
    return label if label[:1] in ("-", "=") else re.split("[-=]", label, maxsplit=1)[0]


def without_lemmas(tree):
    """Remove the lemmas of an IcePaHC tree, whose leaves are `word-lemma`.

    A word and its lemma contain the same number of hyphens, so the middle hyphen separates them.
    """
    if tree.word is None:
        return Tree(tree.label, tuple(map(without_lemmas, tree.children)))
    parts = tree.word.split("-")
    half = (len(parts) + 1) // 2
    return tree._replace(word="-".join(parts[:half])) if parts[0] or half > 1 else tree


def without_empty_icelandic(tree):
    """Remove traces, empty elements and the annotations ID, CODE and META from an IcePaHC tree."""

    def unwanted(part):
        return part.label in ("ID", "CODE", "META") or part.word is not None and _EMPTY.fullmatch(part.word)

    return without(tree, unwanted)


def with_escapes(tree):
    """Escape the brackets in all words; see `escaped`."""
    if tree.word is not None:
        return tree._replace(word=escaped(unescaped(tree.word)))
    return Tree(tree.label, tuple(map(with_escapes, tree.children)))


def penn(tree):
    """Normalize a Penn Treebank tree for training. Return None if no words remain."""
    tree = without_traces(tree)
    return tree and without_outer(without_functions(with_escapes(tree)))


def icelandic(tree):
    """Normalize an IcePaHC tree for training. Return None if no words remain."""
    tree = without_empty_icelandic(tree)
    return tree and without_outer(without_functions(with_escapes(without_lemmas(tree))))
