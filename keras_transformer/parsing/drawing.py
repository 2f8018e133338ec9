"""Drawings of constituency trees as text and SVG.

All words are in one row at the bottom. Each constituent is one level above its highest child, so that most lines are
short. The columns of subtrees do not overlap, so lines cross neither labels nor other lines.
"""

import dataclasses
import math
import unicodedata
from xml.sax.saxutils import escape

from keras_transformer.parsing.tree import unescaped

NAMELESS = "•"
"""Text that replaces an empty label."""

TEXT_GAP = 2
"""Number of columns between two words."""

SVG_GAP, MARGIN = 14, 20
"""Space between words and space around the drawing, in pixels."""

LEVEL, TAG, CORNER = 42, 20, 7
"""Distance between levels, distance between a tag and its word, and radius of corners, in pixels."""

FONT_SIZES = {"labels": 13, "tags": 11, "words": 15}
"""Font sizes in an SVG, in pixels."""

_STYLES = {
    "labels": 'font-weight="bold" fill="#2b5c8a"',
    "tags": 'fill="#66707c"',
    "words": 'fill="#1b1f24"',
}
_BROAD = frozenset("MWmw@%&+=<>~#")


@dataclasses.dataclass
class _Node:
    """Position of a constituent, or of a tag with its word.

    Attributes:
        label: Label to draw.
        word: Word below a tag, or None for a constituent.
        children: List of `_Node`.
        level: Height above the tags, which have level 0.
        centre: Horizontal center of the label and word, in columns or pixels.
        end: Right end of the subtree (exclusive), in columns or pixels.
    """

    label: str
    word: str | None
    children: list
    level: int
    centre: int
    end: int

    def nodes(self):
        """Yield the nodes of the subtree in preorder."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += reversed(node.children)


def text_drawing(tree):
    """Draw a tree as text with box-drawing characters, for a fixed-width font.

    The last line contains all words, and the line above it contains all tags. Long lines are not wrapped.
    """
    root = _placed(tree, 0, TEXT_GAP, lambda text, kind: columns(text))
    bottom = 2 * root.level
    lines = [[] for _ in range(bottom + 2)]  # pairs (first column, text) of each line
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
    """Return the text that connects a constituent to its children. The text begins above the first child."""
    places = [child.centre for child in node.children]
    if len(places) == 1:
        return "│"
    first, last = places[0], places[-1]
    bracket = ["─"] * (last - first + 1)
    for place in places:
        bracket[place - first] = "┬"
    bracket[0], bracket[-1] = "┌", "┐"
    # `centre` is strictly between the ends of the bracket, which are at least two columns apart.
    bracket[node.centre - first] = "┼" if node.centre in places else "┴"
    return "".join(bracket)


def _joined(pieces):
    """Join pairs (first column, text) into a line of text."""
    line, end = [], 0
    for start, text in sorted(pieces):
        line += [" " * (start - end), text]
        end = start + columns(text)
    return "".join(line)


def svg_drawing(tree):
    """Draw a tree as a self-contained SVG, returned as text.

    The viewer chooses the sans-serif font, so the drawing uses generous estimates of text widths.
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
    """Return the SVG path of a line from a constituent's label down to the label of its child."""
    if x == child_x:
        return f"M{x} {top}V{bottom}"
    bar = top + 10
    corner = min(CORNER, abs(child_x - x))
    before = child_x - corner if child_x > x else child_x + corner
    return f"M{x} {top}V{bar}H{before}Q{child_x} {bar} {child_x} {bar + corner}V{bottom}"


def _placed(tree, start, gap, width):
    """Compute the position of a tree and its subtrees. Return its `_Node`.

    Args:
        tree: `Tree`.
        start: Left end of the tree, in columns or pixels.
        gap: Gap between adjacent subtrees.
        width: Function that maps a text and its kind, a key of `FONT_SIZES`, to the width of the text.
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
    if overhang > 0:  # the label is wider than the subtree
        for each in node.nodes():
            each.centre += overhang
            each.end += overhang
    node.end = max(node.end, node.centre - size // 2 + size)
    return node


def _printable(text):
    """Replace control characters, line separators and characters that XML does not allow with U+FFFD."""
    return "".join(
        "\ufffd" if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in "\ufffe\uffff" else char
        for char in text
    )


def columns(text):
    """Return the width of a text in a terminal. Wide East Asian characters count as 2, combining marks as 0."""
    return sum(0 if _has_no_width(char) else 2 if _is_wide(char) else 1 for char in text)


def pixels(text, kind):
    """Estimate the width of a text in an SVG in pixels, assuming a wide font.

    Args:
        text: The text.
        kind: Key of `FONT_SIZES`.
    """
    return math.ceil(FONT_SIZES[kind] * sum(map(_breadth, text)))


def _breadth(char):
    """Return the width of a character in a wide font, relative to the font size."""
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
