"""Attention weights of one translation in all layers and heads, and their page: one file of HTML, no network needed."""

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
"""One for each head, again from the first one on where there are more."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
    """A sequence of tokens.

    Attributes:
        labels: What stands for each.
        words: The words that they make.
        word_of: The number of each token's word, int `[tokens]`, from 0 on, ascending.
    """

    labels: tuple
    words: tuple
    word_of: np.ndarray

    def merged(self):
        """Returns the words as tokens."""
        return Tokens(self.words, self.words, np.arange(len(self.words)))

    def find(self, wanted):
        """Returns the position of a token.

        Args:
            wanted: Its label, or its number from 1 on.

        Raises:
            UserError: There is none.
        """
        plain = [label.strip("▁.,;:!?") for label in self.labels]
        lower = [label.lower() for label in plain]
        for labels, word in ((self.labels, wanted), (plain, wanted), (lower, wanted.lower())):
            if word in labels:
                return labels.index(word)
        numbers = [str(number) for number in range(1, len(self.labels) + 1)]
        if wanted in numbers:
            return numbers.index(wanted)
        raise UserError(f"no word {wanted!r}; the words are {' '.join(self.labels)}, or their numbers from 1 on")


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class AttentionMaps:
    """The attention weights of a source and a target; of each row of one head the sum is 1.

    Attributes:
        source_text, target_text: The texts.
        source: `Tokens` of the source, EOS included.
        target: `Tokens` of the target, EOS included: what a decoder's position gives, and what its row is named after.
        given: `Tokens` of the decoder's input, BOS and the target without EOS: what a decoder's position sees.
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
        """Returns the `Tokens` that attend, and those that are attended to, in attention of a kind of `KINDS`."""
        queries = self.source if kind == "encoder" else self.target
        return queries, self.given if kind == "decoder" else self.source

    def weights(self, kind):
        """Returns the weights of a kind of `KINDS`, float32 `[layers, heads, queries, keys]`."""
        return getattr(self, kind)

    def merged(self):
        """Returns the same by words: a word is attended to by as much as its pieces together, and attends as they do
        on average, so that rows still sum to 1."""
        merged = {}
        for kind in KINDS:
            queries, keys = (_memberships(tokens) for tokens in self.sides(kind))
            mean = queries / queries.sum(axis=1, keepdims=True)
            merged[kind] = np.clip(mean @ self.weights(kind) @ keys.T, 0, 1).astype("float32")  # 1 but for rounding
        sides = {side: getattr(self, side).merged() for side in ("source", "target", "given")}
        return dataclasses.replace(self, **sides, **merged)

    def page(self):
        """Returns a page to look at it in a browser, HTML that needs nothing else."""
        return attention_page(self)

    def __repr__(self):
        layers, heads, targets, sources = self.cross.shape
        return f"<attention of {sources} source and {targets} target tokens, {layers} layers of {heads} heads>"

    def _repr_html_(self):
        """What a notebook shows."""
        return inline(self)


def visible(weights):
    """Returns weights between 0 and 1, as colours need them; those of a model that diverged are 0."""
    return np.clip(np.nan_to_num(weights), 0, 1)


def chosen(weights, layer=None, heads=None, count=None):
    """Returns the number of a layer and a list of those of heads, where they are not given the default ones.

    Args:
        weights: `[layers, heads, queries, keys]`.
        layer, heads: From 0; None for the last layer but one and the first `count` heads, None for all.

    Raises:
        UserError: There is no such layer or head.
    """
    layers, num_heads = weights.shape[:2]
    layer = max(layers - 2, 0) if layer is None else layer
    heads = list(range(num_heads))[:count] if heads is None else list(heads)
    if not 0 <= layer < layers:
        raise UserError(f"there is no layer {layer + 1}; they are 1 to {layers}")
    for head in heads:
        if not 0 <= head < num_heads:
            raise UserError(f"there is no head {head + 1}; they are 1 to {num_heads}")
    return layer, heads


def _memberships(tokens):
    """float64 `[words, tokens]`: 1 where a token belongs to a word."""
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
    """Returns the page of `AttentionMaps`, HTML.

    Args:
        maps: `AttentionMaps`.
        kind: Of `KINDS`: which attention is shown at first.
        layer: The layer that is shown at first, from 0; by default the last but one, if there are two.
        heads: The heads that are shown at first, from 0; by default all.
        pieces: Whether tokens are shown at first, and not the words that they make.
    """
    view = resources.files(__package__) / "page"
    return PAGE.format(
        title=html.escape(f"Attention: {maps.source_text}"),
        source=html.escape(maps.source_text),
        target=html.escape(maps.target_text),
        style=(view / "attention_view.css").read_text(encoding="utf-8"),
        script=(view / "attention_view.js").read_text(encoding="utf-8"),
        # A text could hold what ends a script.
        data=json.dumps(view_data(maps, kind, layer, heads, pieces), ensure_ascii=False).replace("<", "\\u003c"),
    )


def view_data(maps, kind="cross", layer=None, heads=None, pieces=False):
    """Returns what `attention_view.js` shows, of what JSON can hold; arguments as of `attention_page`."""
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
    """Returns HTML for a notebook: the page in a frame of its own, as high as the words need."""
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
