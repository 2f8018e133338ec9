"""A constituency tree, and its text: labelled brackets, as treebanks write them."""

import re
from typing import NamedTuple

from keras_transformer.utils.errors import UserError

DEEPEST = 200
"""Most brackets inside of each other; treebanks have fewer than 60."""

_TOKEN = re.compile(r"[()]|[^\s()]+", re.ASCII)  # a no-break space is part of a word
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LCB-": "{", "-RCB-": "}", "-LSB-": "[", "-RSB-": "]"}
"""What trees write for brackets in words."""
ESCAPED = {bracket: escape for escape, bracket in ESCAPES.items() if bracket not in "[]"}
"""What is escaped when a tree is written: braces, too, as in the Penn Treebank; square brackets not, as in GUM."""


class Tree(NamedTuple):
    """A constituent, or a preterminal, which is a part of speech over a word.

    Attributes:
        label: Its label; "" for the outer bracket of the Penn Treebank.
        children: `Tree`s, none of a preterminal.
        word: The word of a preterminal, otherwise None.
    """

    label: str
    children: tuple = ()
    word: str | None = None

    def __str__(self):
        """The tree in one line: `(S (NP (PRP it)) (VP (VBZ works)))`."""
        text, rest = [], [self]  # what is still to be written, the last first: a search may find very deep trees
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

    def spans(self):
        """Return (label, start, end) of each constituent, the outer before the inner; preterminals are none."""
        spans = []

        def visit(tree, start):
            if tree.word is not None:
                return start + 1
            place, end = len(spans), start
            spans.append(None)
            for child in tree.children:
                end = visit(child, end)
            spans[place] = (tree.label, start, end)
            return end

        visit(self, 0)
        return spans

    def pretty(self, indent=0, width=100, closing=0):
        """Return the tree over several lines: what does not fit into `width` columns has a line for each child.

        Args:
            indent: Blanks that lines begin with.
            width: See above.
            closing: Brackets that follow in the last line.
        """
        line = " " * indent + str(self)
        if self.word is not None or len(line) + closing <= width:
            return line
        lines = [child.pretty(indent + 2, width) for child in self.children[:-1]]
        lines.append(self.children[-1].pretty(indent + 2, width, closing + 1))
        return "\n".join([f"{' ' * indent}({self.label}", *lines]) + ")"


def read_trees(lines, name="the text"):
    """Yield the `Tree`s of a text in brackets, each over one line or several.

    Args:
        lines: The lines of text.
        name: What an error calls the text: its file.

    Raises:
        UserError: Brackets are unbalanced, empty or too deep, or a word has no tag; it says at which line.
    """
    for _, tree in numbered_trees(lines, name):
        yield tree


def numbered_trees(lines, name="the text"):
    """Yield (number of the line that a tree begins in, `Tree`); see `read_trees`."""
    stack, began, number = [], 0, 0  # of each open bracket: its label and what is in it
    for number, line in enumerate(lines, start=1):
        place = f"{name}:{number}"
        for token in _TOKEN.findall(line):
            if token == "(":
                if not stack:
                    began = number
                if len(stack) == DEEPEST:
                    raise UserError(f"{place}: brackets are deeper than {DEEPEST}; is one not closed?")
                stack.append([None, []])
            elif not stack:
                raise UserError(f"{place}: {token!r} stands outside of any tree; each begins with '('")
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
                    yield began, tree
    if stack:
        raise UserError(f"{name}:{began}: the tree that begins here is not closed; {len(stack)} ')' are missing")


def tree_of(text):
    """Return the one `Tree` of a text.

    Raises:
        UserError: The text is not one tree.
    """
    trees = list(read_trees(text.split("\n"), repr(text)))
    if len(trees) != 1:
        raise UserError(f"{text!r} holds {len(trees)} trees, not one")
    return trees[0]


def _closed(label, inside, place):
    """The tree of a bracket with its content, texts and trees."""
    words = [item for item in inside if isinstance(item, str)]
    if label is not None and len(words) == len(inside) == 1:
        return Tree(label, (), words[0])
    if not inside:
        what = "()" if label is None else f"({label})"
        raise UserError(f"{place}: {what} is empty; a word stands in its tag's bracket: (NN word)")
    if words:
        raise UserError(f"{place}: {words[0]!r} has no tag of its own; write each word as (TAG word)")
    return Tree(label or "", tuple(inside))


def escaped(word):
    """Return a word as a tree writes it: -LRB- for the bracket "(", which would be part of the tree."""
    for bracket, escape in ESCAPED.items():
        word = word.replace(bracket, escape)
    return word


def unescaped(word):
    """Return a word of a tree as text writes it: the bracket "(" for -LRB-."""
    for escape, bracket in ESCAPES.items():
        word = word.replace(escape, bracket)
    return word
