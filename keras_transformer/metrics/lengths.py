"""Lengths in space-separated words: buckets of sources, and the length ratio of outputs to references."""

WIDTH, LONG = 10, 50


def length_buckets(words):
    """Group row indices by length: {"1-10": [row, …], …, "51+": …}, without empty buckets.

    Rows without words are in the bucket "0".

    Args:
        words: Number of words in each row.
    """
    buckets = {}
    for row in sorted(range(len(words)), key=words.__getitem__):  # shortest bucket first
        buckets.setdefault(_bucket(words[row]), []).append(row)
    return {name: sorted(rows) for name, rows in buckets.items()}


def length_ratio(outputs, references):
    """Return the ratio of output words to reference words, or None if there are no reference words."""
    words, expected = (sum(len(text.split()) for text in texts) for texts in (outputs, references))
    return words / expected if expected else None


def _bucket(words):
    if words == 0:
        return "0"
    if words > LONG:
        return f"{LONG + 1}+"
    first = (words - 1) // WIDTH * WIDTH + 1
    return f"{first}-{first + WIDTH - 1}"
