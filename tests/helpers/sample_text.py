"""Sample sentences and a small vocabulary."""

import random

from keras_transformer.data.tokenizers.symbols import SymbolTokenizer

WORDS = "ein Haus der Bär läuft über die Straße und ruft laut nach einem Freund".split()
SYMBOLS = SymbolTokenizer([f"s{i}" for i in range(20)])


def sentences(count, seed=1):
    """Return `count` random sentences of 1 to 8 `WORDS`. Each ends with its index, so they all differ."""
    rng = random.Random(seed)
    return [f"{' '.join(rng.choices(WORDS, k=rng.randint(1, 8)))} {i}" for i in range(count)]
