"""Attention weights of a translation in all layers and heads, and a self-contained HTML page that shows them."""

import base64
import dataclasses
import html
import json
from importlib import resources

import numpy as np

from keras_transformer.utils.errors import UserError

KINDS = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
COLORS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#ff9da7",
    "#9c755f", "#7f8790", "#1f9ed1", "#8cd17d", "#d37295", "#a0cbe8", "#b6992d", "#499894",
)  # fmt: skip
"""Colors of the heads. They repeat if there are more than 16 heads."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
    """A sequence of tokens.

    Attributes:
        labels: Text of each token.
        words: Text of each word.
        word_of: Index in `words` of each token's word, int `[tokens]`, in ascending order.
    """

    labels: tuple
    words: tuple
    word_of: np.ndarray

    def merged(self):
        """Return `Tokens` with one token per word."""
        return Tokens(self.words, self.words, np.arange(len(self.words)))

    def find(self, wanted):
        """Return the index of a token.

        Args:
            wanted: Label of the token (case and punctuation are optional), or its number, starting at 1.

        Raises:
            UserError: There is no such token.
        """
        plain = [label.strip("▁.,;:!?") for label in self.labels]
        lower = [label.lower() for label in plain]
        for labels, word in ((self.labels, wanted), (plain, wanted), (lower, wanted.lower())):
            if word in labels:
                return labels.index(word)
        numbers = [str(number) for number in range(1, len(self.labels) + 1)]
        if wanted in numbers:
            return numbers.index(wanted)
        raise UserError(
            f"word must be a number from 1 to {len(self.labels)} or one of {' '.join(self.labels)}, got {wanted!r}"
        )


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class AttentionMaps:
    """Attention weights for a source and a target. In each head, the weights of a query (a row) sum to 1.

    Attributes:
        source_text, target_text: The texts.
        source: `Tokens` of the source, including EOS.
        target: `Tokens` of the decoder's output: the target, including EOS. Each token has a row in `decoder` and
            `cross`.
        given: `Tokens` of the decoder's input: BOS, and the target without EOS. Each token has a column in `decoder`.
        encoder: float32 `[layers, heads, source_tokens, source_tokens]`.
        decoder: float32 `[layers, heads, target_tokens, target_tokens]`.
        cross: float32 `[layers, heads, target_tokens, source_tokens]`.
    """

    source_text: str
    target_text: str
    source: Tokens
    target: Tokens
    given: Tokens
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray

    def sides(self, kind):
        """Return the `Tokens` of the queries and of the keys. `kind` is one of `KINDS`."""
        queries = self.source if kind == "encoder" else self.target
        return queries, self.given if kind == "decoder" else self.source

    def weights(self, kind):
        """Return the weights of a kind of attention, float32 `[layers, heads, queries, keys]`."""
        return getattr(self, kind)

    def merged(self):
        """Return the attention between words instead of tokens.

        The method adds the columns of a word's tokens and averages their rows, so rows still sum to 1.
        """
        merged = {}
        for kind in KINDS:
            queries, keys = (_memberships(tokens) for tokens in self.sides(kind))
            mean = queries / queries.sum(axis=1, keepdims=True)
            # Clip, because rounding errors can produce values above 1.
            merged[kind] = np.clip(mean @ self.weights(kind) @ keys.T, 0, 1).astype("float32")
        sides = {side: getattr(self, side).merged() for side in ("source", "target", "given")}
        return dataclasses.replace(self, **sides, **merged)

    def page(self):
        """Return a self-contained HTML page for a browser."""
        return attention_page(self)

    def __repr__(self):
        layers, heads, targets, sources = self.cross.shape
        return f"<attention of {sources} source and {targets} target tokens, {layers} layers of {heads} heads>"

    def _repr_html_(self):
        """Return the HTML for a notebook."""
        return inline(self)


def visible(weights):
    """Clip weights to [0, 1] for drawing, and replace NaN with 0."""
    return np.clip(np.nan_to_num(weights), 0, 1)


def chosen(weights, layer=None, heads=None, count=None):
    """Validate a layer and heads, and replace None with defaults. Return the layer's index and a list of head indices.

    Args:
        weights: `[layers, heads, queries, keys]`.
        layer: Index, or None for the second-to-last layer (or the only layer).
        heads: Indices, or None for the first `count` heads.
        count: Default number of heads, or None for all.

    Raises:
        UserError: A layer or head does not exist.
    """
    layers, num_heads = weights.shape[:2]
    layer = max(layers - 2, 0) if layer is None else layer
    heads = list(range(num_heads))[:count] if heads is None else list(heads)
    if not 0 <= layer < layers:
        raise UserError(f"layer must be from 1 to {layers}, got {layer + 1}")
    for head in heads:
        if not 0 <= head < num_heads:
            raise UserError(f"head must be from 1 to {num_heads}, got {head + 1}")
    return layer, heads


def _memberships(tokens):
    """Return float64 `[words, tokens]`, 1 where a token belongs to a word and 0 elsewhere."""
    return (np.arange(len(tokens.words))[:, None] == tokens.word_of[None]).astype("float64")


PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 24px; background: Canvas; font: 15px/1.4 system-ui, sans-serif; }}
dl {{ margin: 0 0 16px; }}
dt {{ float: left; clear: left; width: 5em; opacity: 0.7; }}
dd {{ margin: 0 0 0 5em; }}
{style}</style>
<dl><dt>source<dd dir="auto">{source}<dt>target<dd dir="auto">{target}</dl>
<div id="view"></div>
<script type="application/json" id="data">{data}</script>
<script>
{script}
attentionView(document.getElementById("view"), JSON.parse(document.getElementById("data").textContent));
</script>
</html>
"""


def attention_page(maps, kind="cross", layer=None, heads=None, pieces=False):
    """Return the self-contained HTML page of `AttentionMaps`.

    Args:
        maps: `AttentionMaps`.
        kind: Kind of attention to select first, a key of `KINDS`.
        layer: Index of the layer to select first (default: the second-to-last layer).
        heads: Indices of the heads to select first (default: all).
        pieces: Whether to show subwords instead of words at first.
    """
    view = resources.files(__package__) / "page"
    return PAGE.format(
        title=html.escape(f"Attention: {maps.source_text}"),
        source=html.escape(maps.source_text),
        target=html.escape(maps.target_text),
        style=(view / "attention_view.css").read_text(encoding="utf-8"),
        script=(view / "attention_view.js").read_text(encoding="utf-8"),
        # Escape "<", because a text could contain "</script>".
        data=json.dumps(view_data(maps, kind, layer, heads, pieces), ensure_ascii=False).replace("<", "\\u003c"),
    )


def view_data(maps, kind="cross", layer=None, heads=None, pieces=False):
    """Return the data for `attention_view.js` as a JSON-serializable dict. See `attention_page` for the arguments."""
    layer, heads = chosen(maps.weights(kind), layer, heads)
    forms = {"words": maps.merged(), "pieces": maps}
    return {
        "colors": COLORS,
        "maps": [
            {"label": label, "forms": {name: _form(of_form, one) for name, of_form in forms.items()}}
            for one, label in KINDS.items()
        ],
        "chosen": {
            "map": list(KINDS).index(kind),
            "layer": layer,
            "heads": heads,
            "form": "pieces" if pieces else "words",
        },
    }


def inline(maps):
    """Return HTML that shows the attention page in a notebook, in a frame that is tall enough for all words."""
    rows = max(len(maps.source.words), len(maps.target.words)) + 1
    page = html.escape(attention_page(maps))
    return (
        f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="attention" '
        f'style="width: 100%; height: {26 * rows + 260}px; border: 0"></iframe>'
    )


def _form(maps, kind):
    weights = maps.weights(kind)
    queries, keys = maps.sides(kind)
    return {
        "queries": queries.labels,
        "keys": keys.labels,
        "layers": weights.shape[0],
        "heads": weights.shape[1],
        "weights": base64.b64encode(np.rint(255 * visible(weights)).astype("uint8").tobytes()).decode(),
    }
