"""Drawings of constituency trees, top-down: text for a terminal, and SVG.

A constituent stands as low as what it holds lets it, so that small phrases are near their words and few lines are
long. Words have a column each, and so has every subtree: no line crosses another one, nor a label.
"""

import dataclasses
import math
import unicodedata
from xml.sax.saxutils import escape

from keras_transformer.parsing.tree import unescaped

NAMELESS = "•"
"""Stands for an empty label."""

TEXT_GAP = 2
"""Columns between words."""

SVG_GAP, MARGIN = 14, 20
"""Pixels between words, and around the drawing."""

LEVEL, TAG, CORNER = 42, 20, 7
"""Pixels from a label to the next lower one, from a word up to its tag, and of a line's rounded corner."""

FONT_SIZES = {"labels": 13, "tags": 11, "words": 15}
"""Pixels of what is written in an SVG."""

_STYLES = {
    "labels": 'font-weight="bold" fill="#2b5c8a"',
    "tags": 'fill="#66707c"',
    "words": 'fill="#1b1f24"',
}
_BROAD = frozenset("MWmw@%&+=<>~#")


@dataclasses.dataclass
class _Node:
    """A constituent, or a tag over its word, with its place.

    Attributes:
        label: What is written for it.
        word: The word under a tag, otherwise None.
        children: `_Node`s.
        level: How many constituents are on the longest way down from here, itself counted; 0 of a tag.
        centre: Where its label and word have their middle, and a line from above ends.
        end: Where the next subtree may begin, but for the gap.
    """

    label: str
    word: str | None
    children: list
    level: int
    centre: int
    end: int

    def nodes(self):
        """Yield this node and all below, each before its children, from left to right."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += reversed(node.children)


def text_drawing(tree):
    """Return a tree as lines of text with Unicode's box-drawing characters, to be read in a fixed-width font.

    All words are in the last line and their tags in the one above; lines are as wide as they need to be.
    """
    root = _placed(tree, 0, TEXT_GAP, lambda text, kind: columns(text))
    bottom = 2 * root.level
    lines = [[] for _ in range(bottom + 2)]  # of each: (first column, text)
    for node in root.nodes():
        row = bottom - 2 * node.level
        lines[row].append((node.centre - columns(node.label) // 2, node.label))
        if node.word is not None:
            lines[row + 1].append((node.centre - columns(node.word) // 2, node.word))
        else:
            lines[row + 1].append((node.children[0].centre, _bracket(node)))
        for child in node.children:
            for between in range(row + 2, bottom - 2 * child.level):
                lines[between].append((child.centre, "│"))
    return "\n".join(map(_joined, lines))


def _bracket(node):
    """The line from a constituent to its children, as text that begins over the first of them."""
    places = [child.centre for child in node.children]
    if len(places) == 1:
        return "│"
    first, last = places[0], places[-1]
    bracket = ["─"] * (last - first + 1)
    for place in places:
        bracket[place - first] = "┬"
    bracket[0], bracket[-1] = "┌", "┐"
    # Never one of the ends: words are far enough apart.
    bracket[node.centre - first] = "┼" if node.centre in places else "┴"
    return "".join(bracket)


def _joined(pieces):
    """A line of text from (first column, text)s."""
    line, end = [], 0
    for start, text in sorted(pieces):
        line += [" " * (start - end), text]
        end = start + columns(text)
    return "".join(line)


def svg_drawing(tree):
    """Return a tree as a picture: an SVG file's text, which needs nothing from elsewhere.

    Texts have the reader's own sans-serif font. Their widths are estimates, on the wide side.
    """
    root = _placed(tree, MARGIN, SVG_GAP, pixels)
    top = MARGIN + FONT_SIZES["labels"]
    tags = top + LEVEL * root.level
    width, height = root.end + MARGIN, tags + TAG + FONT_SIZES["words"] // 2 + MARGIN
    lines, written = [], {kind: [] for kind in FONT_SIZES}
    for node in root.nodes():
        y = tags - LEVEL * node.level
        written["tags" if node.word is not None else "labels"].append((node.centre, y, node.label))
        if node.word is not None:
            written["words"].append((node.centre, tags + TAG, node.word))
        for child in node.children:
            lines.append(_line(node.centre, y + 6, child.centre, tags - LEVEL * child.level - 14))
    sentence = " ".join(word for _, _, word in written["words"])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" font-family="sans-serif" text-anchor="middle">',
        f"<title>{escape(sentence)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        '<g class="lines" fill="none" stroke="#a3adb8" stroke-width="1.3">',
        *(f'<path d="{line}"/>' for line in lines),
        "</g>",
    ]
    for kind, texts in written.items():
        parts.append(f'<g class="{kind}" font-size="{FONT_SIZES[kind]}" {_STYLES[kind]}>')
        parts += [f'<text x="{x}" y="{y}">{escape(text)}</text>' for x, y, text in texts]
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(x, top, child_x, bottom):
    """The path of a line from a constituent's label down to that of its child, which may be levels below."""
    if x == child_x:
        return f"M{x} {top}V{bottom}"
    bar = top + 10
    corner = min(CORNER, abs(child_x - x))
    before = child_x - corner if child_x > x else child_x + corner
    return f"M{x} {top}V{bar}H{before}Q{child_x} {bar} {child_x} {bar + corner}V{bottom}"


def _placed(tree, start, gap, width):
    """The `_Node` of a tree, with all that is in it from `start` on.

    Args:
        tree: The `Tree`.
        start: The first column, or pixel.
        gap: Between neighbouring subtrees.
        width: Function of (text, kind) with a kind of `FONT_SIZES`.
    """
    label = _printable(tree.label) or NAMELESS
    if tree.word is not None:
        word = _printable(unescaped(tree.word))
        size = max(width(label, "tags"), width(word, "words"))
        return _Node(label, word, [], 0, start + size // 2, start + size)
    children = []
    for child in tree.children:
        children.append(_placed(child, children[-1].end + gap if children else start, gap, width))
    size = width(label, "labels")
    centre = (children[0].centre + children[-1].centre) // 2
    node = _Node(label, None, children, 1 + max(child.level for child in children), centre, children[-1].end)
    overhang = start - (centre - size // 2)
    if overhang > 0:  # the label is wider than what is under it
        for each in node.nodes():
            each.centre += overhang
            each.end += overhang
    node.end = max(node.end, node.centre - size // 2 + size)
    return node


def _printable(text):
    """A text without what would move a terminal's cursor, or end a line, or may not be in XML."""
    return "".join(
        "\ufffd" if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in "\ufffe\uffff" else char
        for char in text
    )


def columns(text):
    """Return how many columns of a terminal a text takes: East Asian wide characters two, combining marks none."""
    return sum(0 if _has_no_width(char) else 2 if _is_wide(char) else 1 for char in text)


def pixels(text, kind):
    """Return about how many pixels a text takes in an SVG, rather too many: fonts differ.

    Args:
        text: The text.
        kind: A kind of `FONT_SIZES`.
    """
    return math.ceil(FONT_SIZES[kind] * sum(map(_breadth, text)))


def _breadth(char):
    """The width of a character in proportion to the font's size, as wide fonts have it."""
    if _has_no_width(char):
        return 0
    if _is_wide(char):
        return 1.4
    if char in _BROAD or not char.isascii():
        return 1.1
    return 0.85 if char.isupper() else 0.7


def _is_wide(char):
    return unicodedata.east_asian_width(char) in "WF"


def _has_no_width(char):
    return unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf")
