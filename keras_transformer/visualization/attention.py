"""How much each position attends to each other one, in all layers and heads, with the words that stand there."""

import dataclasses

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
        from keras_transformer.visualization.attention_page import attention_page

        return attention_page(self)

    def __repr__(self):
        layers, heads, targets, sources = self.cross.shape
        return f"<attention of {sources} source and {targets} target tokens, {layers} layers of {heads} heads>"

    def _repr_html_(self):
        """What a notebook shows."""
        from keras_transformer.visualization.attention_page import inline

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
