"""Conversion between trees and sequences of symbols, after Vinyals et al. 2015, "Grammar as a Foreign Language".

`(S (NP (PRP it)) (VP (VBZ works)))` becomes `(S (NP PRP )NP (VP VBZ )VP )S`. The sequence keeps the part-of-speech
tags, and each closing bracket has a label. The sequence omits the words, because the source sentence contains them. If
all tags are XX, the model predicts only constituents.
"""

from keras_transformer.parsing.tree import DEEPEST, Tree, escaped

ANY_TAG = "XX"


def linearize(tree, tags=True):
    """Return the symbols of a tree as a list.

    Args:
        tree: `Tree`.
        tags: Whether to keep the tags. If False, all tags become XX.
    """
    if tree.word is not None:
        return [tree.label if tags else ANY_TAG]
    inside = [symbol for child in tree.children for symbol in linearize(child, tags)]
    return [f"({tree.label}", *inside, f"){tree.label}"]


def is_bracket(symbol):
    """Return whether a symbol is a bracket. All other symbols are tags."""
    return symbol[0] in "()"


def repaired(symbols, words):
    """Convert any sequence of symbols to a `Tree`. The function repairs an invalid sequence by these rules:

    - A closing bracket closes the innermost open bracket with the same label, and all brackets inside it. A closing
      bracket without a matching open bracket is ignored.
    - If there are too many tags, the last ones are ignored. If there are too few, the remaining words get the tag XX in
      the innermost open constituent.
    - All open brackets are closed at the end.
    - Brackets deeper than `DEEPEST` and constituents without words are dropped.
    - Several top-level constituents get a common parent TOP.

    Args:
        symbols: List of brackets and tags.
        words: List of unescaped words.
    """
    stack, rest = [("TOP", [])], iter(words)
    for symbol in symbols:
        if symbol[0] == "(":
            if len(stack) < DEEPEST - 1:  # at most DEEPEST levels, including TOP and a tag
                stack.append((symbol[1:], []))
        elif symbol[0] != ")":
            word = next(rest, None)
            if word is not None:
                stack[-1][1].append(Tree(symbol, (), escaped(word)))
        elif symbol[1:] in [label for label, _ in stack[1:]]:
            while _close(stack) != symbol[1:]:
                pass
    stack[-1][1].extend(Tree(ANY_TAG, (), escaped(word)) for word in rest)
    while len(stack) > 1:
        _close(stack)
    parts = stack[0][1]
    return parts[0] if len(parts) == 1 and parts[0].word is None else Tree("TOP", tuple(parts))


def _close(stack):
    """Close the innermost constituent and return its label."""
    label, children = stack.pop()
    if children:
        stack[-1][1].append(Tree(label, tuple(children)))
    return label
