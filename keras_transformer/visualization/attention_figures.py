"""Matplotlib attention figures like figures 3 to 5 of the paper."""

import unicodedata

from keras_transformer.utils.errors import UserError
from keras_transformer.visualization.attention import COLORS, KINDS, chosen, visible
from keras_transformer.visualization.plots import new_figure

FIGURES = {
    3: "one word in all heads",
    4: "one head, and below it one word in the selected heads",
    5: "two heads side by side",
}
"""{number of a figure in the paper: description of the figure}."""

STEP, HEIGHT = 0.34, 1.6
"""Distance between neighbouring words, and between queries and keys, in inches."""
LETTER = 0.095
"""Vertical space per letter of a word, in inches. Words are drawn vertically."""
TITLE_LETTER = 0.06
"""Horizontal space per letter of a title, in inches."""
LEAST = 0.01
"""Minimum weight to draw."""


def draw_figure(number, maps, kind="encoder", layer=None, heads=None, word=None):
    """Draw an attention figure and return the Matplotlib `Figure`.

    Args:
        number: Number of the figure, a key of `FIGURES`.
        maps: `AttentionMaps` of words or subwords.
        kind: Kind of attention, a key of `attention.KINDS`.
        layer: Index of the layer (default: the second-to-last layer, as in the paper, or the only layer).
        heads: Indices of the heads (default: all for figure 3, the first two for the other figures).
        word: Label of the query word in figures 3 and 4, or its number, starting at 1 (default: the middle word).

    Raises:
        UserError: The figure, layer, head or word does not exist, the number of heads for figure 5 is not two, or
            Matplotlib is not installed.
    """
    if number not in FIGURES:
        raise UserError(f"number must be one of {', '.join(map(str, FIGURES))}, got {number}")
    weights = maps.weights(kind)
    layer, heads = chosen(weights, layer, heads, None if number == 3 else 2)
    if number == 5 and len(heads) != 2:
        raise UserError(f"figure 5 needs exactly two heads, got {len(heads)}")
    weights = visible(weights[layer])
    queries, keys = maps.sides(kind)
    query = queries.find(word) if word else len(queries.labels) // 2
    if number == 3:
        panels = [[(heads, query)]]
    elif number == 4:
        panels = [[(heads[:1], None)], [(heads, query)]]
    else:
        panels = [[(heads[:1], None), (heads[1:], None)]]
    titles = [_title(kind, layer, drawn) for in_row in panels for drawn, _ in in_row]
    width = max(STEP * (max(len(queries.labels), len(keys.labels)) + 1), TITLE_LETTER * max(map(len, titles)) + STEP)
    top, bottom = (LETTER * max(map(_letters, side.labels)) + 0.25 for side in (queries, keys))
    height = top + HEIGHT + bottom + 0.25
    figure = new_figure(width * len(panels[0]), height * len(panels))
    for row, in_row in enumerate(panels):
        for column, (drawn, only) in enumerate(in_row):
            axes = figure.add_axes(
                (column / len(in_row), 1 - (row + 1) / len(panels), 1 / len(in_row), 1 / len(panels))
            )
            axes.set_xlim(-1, width / STEP - 1)
            axes.set_ylim(-bottom, HEIGHT + top + 0.25)
            axes.axis("off")
            _draw(axes, weights, queries.labels, keys.labels, drawn, only, top)
            title = _title(kind, layer, drawn)
            axes.text(-0.7, HEIGHT + top + 0.1, title, fontsize=8, color="#66707c", va="center")
    return figure


def _title(kind, layer, heads):
    name = "head" if len(heads) == 1 else "heads"
    return f"{KINDS[kind]}, layer {layer + 1}, {name} {', '.join(str(head + 1) for head in heads)}"


def _letters(label):
    """Return the length of a label, measured in Latin letters. East Asian characters and emoji count as 1.5 letters."""
    return sum(1.5 if unicodedata.east_asian_width(character) in "WF" else 1 for character in label)


def _draw(axes, weights, queries, keys, heads, only, top):
    """Draw queries above keys, with a line for each weight. If `only` is an index, draw only that query's lines."""
    from matplotlib.collections import LineCollection

    for labels, y, side in ((queries, HEIGHT, "bottom"), (keys, 0, "top")):
        for x, label in enumerate(labels):
            faint = side == "bottom" and only not in (None, x)
            axes.text(
                x, y + (0.06 if side == "bottom" else -0.1), label, rotation=90, ha="center", va=side, fontsize=10,
                color="#9aa4af" if faint else "#1b1f24", parse_math=False,
            )  # fmt: skip
    lines, colors, widths = [], [], []
    for i, head in enumerate(heads):
        offset = (i - (len(heads) - 1) / 2) * min(0.06, 0.6 / len(heads))
        for query in range(len(queries)) if only is None else [only]:
            for key in range(len(keys)):
                weight = float(weights[head, query, key])
                if weight >= LEAST:
                    lines.append([(query + offset, HEIGHT), (key + offset, 0)])
                    colors.append((COLORS[head % len(COLORS)], weight))
                    widths.append(2.2 if only is not None else 1.6)
    axes.add_collection(LineCollection(lines, colors=colors, linewidths=widths))
    if only is not None:
        _draw_shares(axes, weights[:, only], heads)


def _draw_shares(axes, weights, heads):
    """Draw a row of cells above each key, one per head, with the weight as opacity."""
    from matplotlib.patches import Rectangle

    size = 0.8 / len(heads)
    for i, head in enumerate(heads):
        for key, weight in enumerate(weights[head]):
            place = (key - 0.4 + i * size, -0.05)
            axes.add_patch(Rectangle(place, size, 0.1, color=COLORS[head % len(COLORS)], alpha=float(weight), lw=0))
