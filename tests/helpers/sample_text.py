"""Small texts and vocabularies."""

import random

from keras_transformer.data.tokenizers.symbols import SymbolTokenizer

WORDS = "ein Haus der Bär läuft über die Straße und ruft laut nach einem Freund".split()
SYMBOLS = SymbolTokenizer([f"s{i}" for i in range(20)])


def sentences(count, seed=1):
    """Return random sequences of `WORDS`, each with its index at the end."""
    rng = random.Random(seed)
    return [f"{' '.join(rng.choices(WORDS, k=rng.randint(1, 8)))} {i}" for i in range(count)]
