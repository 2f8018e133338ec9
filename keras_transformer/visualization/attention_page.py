"""A page to look at attention: one file of HTML that needs no network and no other file."""

import base64
import html
import json
from importlib import resources

import numpy as np

from keras_transformer.visualization.attention import COLORS, KINDS, chosen, visible

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
    view = resources.files(__package__)
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
