"""Constituency trees and their notation with labeled brackets."""

import re
from typing import NamedTuple

from keras_transformer.utils.errors import UserError

DEEPEST = 200
"""Maximum nesting depth of brackets. Treebanks have fewer than 60 levels."""

_TOKEN = re.compile(r"[()]|[^\s()]+", re.ASCII)  # in ASCII mode, a no-break space is part of a word
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}
"""{escape: bracket} for brackets in the words of trees."""
ESCAPED = {bracket: escape for escape, bracket in ESCAPES.items() if bracket not in "[]"}
"""{bracket: escape} for writing trees. As in GUM, square brackets are not escaped."""


class Tree(NamedTuple):
    """Constituent or preterminal. A preterminal is a part-of-speech tag with its word.

    Attributes:
        label: Label or tag. The outer bracket of the Penn Treebank has the label "".
        children: Tuple of `Tree`, empty for a preterminal.
        word: Word of a preterminal, or None for a constituent.
    """

    label: str
    children: tuple = ()
    word: str | None = None

    def __str__(self):
        """Return the tree on one line: `(S (NP (PRP it)) (VP (VBZ works)))`."""
        text, rest = [], [self]  # use a stack, because a search may return trees too deep for recursion
        while rest:
            part = rest.pop()
            if isinstance(part, str):
                text.append(part)
            elif part.word is not None:
                text.append(f"({part.label} {part.word})")
            else:
                text.append(f"({part.label}")
                rest += [")", *(each for child in reversed(part.children) for each in (child, " "))]
        return "".join(text)

    def leaves(self):
        """Return the preterminals from left to right."""
        if self.word is not None:
            return [self]
        return [leaf for child in self.children for leaf in child.leaves()]

    def words(self):
        """Return the words from left to right."""
        return [leaf.word for leaf in self.leaves()]

    def pretty(self, indent=0, width=100, closing=0):
        """Return the tree as indented lines. If a constituent does not fit on one line, each child starts a new line.

        Args:
            indent: Indentation of all lines.
            width: Maximum length of a line that contains a complete constituent.
            closing: Number of closing brackets that follow on the last line.
        """
        line = " " * indent + str(self)
        if self.word is not None or len(line) + closing <= width:
            return line
        lines = [child.pretty(indent + 2, width) for child in self.children[:-1]]
        lines.append(self.children[-1].pretty(indent + 2, width, closing + 1))
        return "\n".join([f"{' ' * indent}({self.label}", *lines]) + ")"


def read_trees(lines, name="the text"):
    """Yield the `Tree`s of a text of bracketed trees. A tree may span several lines.

    Args:
        lines: Lines of the text.
        name: Name of the file for error messages, which also include the line number.

    Raises:
        UserError: Brackets are unbalanced, empty or nested too deeply, or a word has no tag.
    """
    stack, began = [], 0  # the stack contains the label and the contents of each open bracket
    for number, line in enumerate(lines, start=1):
        place = f"{name}:{number}"
        for token in _TOKEN.findall(line):
            if token == "(":
                if not stack:
                    began = number
                if len(stack) == DEEPEST:
                    raise UserError(
                        f"{place}: brackets must be nested at most {DEEPEST} deep. Check that each one is closed."
                    )
                stack.append([None, []])
            elif not stack:
                raise UserError(f"{place}: {token!r} is outside of the trees. Begin each tree with '('.")
            elif token != ")":
                label, inside = stack[-1]
                if label is None and not inside:
                    stack[-1][0] = token
                else:
                    inside.append(token)
            else:
                tree = _closed(*stack.pop(), place)
                if stack:
                    stack[-1][1].append(tree)
                else:
                    yield tree
    if stack:
        raise UserError(f"{name}:{began}: the tree that begins here is not closed: {len(stack)} missing ')'")


def tree_of(text):
    """Return the `Tree` of a text that contains exactly one tree.

    Raises:
        UserError: The text is not exactly one tree.
    """
    trees = list(read_trees(text.split("\n"), repr(text)))
    if len(trees) != 1:
        raise UserError(f"{text!r} must contain one tree, got {len(trees)}")
    return trees[0]


def _closed(label, inside, place):
    """Return the tree of a closed bracket, given its label and its contents (a list of words and trees)."""
    words = [item for item in inside if isinstance(item, str)]
    if label is not None and len(words) == len(inside) == 1:
        return Tree(label, (), words[0])
    if not inside:
        what = "()" if label is None else f"({label})"
        raise UserError(f"{place}: {what} is empty. Write each word as (TAG word).")
    if words:
        raise UserError(f"{place}: {words[0]!r} has no tag. Write each word as (TAG word).")
    return Tree(label or "", tuple(inside))


def escaped(word):
    """Escape the brackets in a word, such as "(" as -LRB-, to distinguish them from the brackets of the tree."""
    for bracket, escape in ESCAPED.items():
        word = word.replace(bracket, escape)
    return word


def unescaped(word):
    """Convert escapes in a word, such as -LRB-, to brackets."""
    for escape, bracket in ESCAPES.items():
        word = word.replace(escape, bracket)
    return word
