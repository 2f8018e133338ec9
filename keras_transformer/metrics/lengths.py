"""Lengths in words, which spaces divide: buckets of sources, and how long outputs are beside their references."""

WIDTH, LONG = 10, 50


def length_buckets(words):
    """Return {"1-10": [row, …], …, "51+": …}: the rows whose numbers of words are `words`, without empty buckets.

    Those without a word are a bucket "0" of their own, so that the buckets hold every row once.
    """
    buckets = {}
    for row in sorted(range(len(words)), key=words.__getitem__):  # stable: rows stay in order within a bucket
        buckets.setdefault(_bucket(words[row]), []).append(row)
    return {name: sorted(rows) for name, rows in buckets.items()}


def length_ratio(outputs, references):
    """Return the words of all outputs / the words of all references, or None where the references have none."""
    words, expected = (sum(len(text.split()) for text in texts) for texts in (outputs, references))
    return words / expected if expected else None


def _bucket(words):
    if words == 0:
        return "0"
    if words > LONG:
        return f"{LONG + 1}+"
    first = (words - 1) // WIDTH * WIDTH + 1
    return f"{first}-{first + WIDTH - 1}"
