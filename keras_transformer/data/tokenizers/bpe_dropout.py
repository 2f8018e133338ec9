"""BPE-dropout (Provilkov et al. 2020), which segments texts at random and is useful for small corpora.

Byte-pair encoding starts with the characters of a word. In every step, it applies one of the possible merges, the one
that was learned first. BPE-dropout skips each possible merge with a given probability. A model then sees different
segmentations of the same word and learns how words are composed. With probability 0, the result is the tokenizer's own
segmentation.

SentencePiece can also sample segmentations, but its samples differ between processes even with the same seed. A
prepared corpus would then depend on interruptions and on the number of workers.
"""

import itertools

import numpy as np

LONGEST = 100  # in characters; longer words do not change, because the time grows with the square of the length


class BPEDropout:
    """Callable that segments the words of a sequence of ids at random.

    Args:
        pieces: List of all pieces, indexed by id.
        scores: List with the score of each piece. The merge whose result has the highest score comes first.
        word_starts: `[vocab_size]`, 1 for ids that begin a word.
        kept: Ids, including UNK, that the segmentation must preserve. A word that contains one of them does not change.
    """

    def __init__(self, pieces, scores, word_starts, kept):
        self._pieces, self._starts, self._kept = pieces, np.asarray(word_starts) == 1, frozenset(kept)
        self._ids = {piece: i for i, piece in enumerate(pieces) if i not in self._kept}
        self._scores = {piece: scores[i] for piece, i in self._ids.items()}

    def __call__(self, ids, rate, random):
        """Return the ids of a random segmentation. Words of more than `LONGEST` characters do not change.

        Args:
            ids: Sequence of ids, without BOS and EOS.
            rate: Probability of skipping a merge.
            random: `random.Random`.
        """
        begins = [0, *(place for place, i in enumerate(ids) if place and self._starts[i]), len(ids)]
        found = []
        for begin, end in itertools.pairwise(begins):
            word = ids[begin:end]
            text = "".join(self._pieces[i] for i in word)
            if len(text) <= LONGEST and self._kept.isdisjoint(word):
                word = [self._ids[part] for part in self._cut(text, rate, random)]
            found += word
        return found

    def _cut(self, word, rate, random):
        parts, scores, chance = list(word), self._scores, random.random
        while True:
            best, at = None, None
            for place, (left, right) in enumerate(itertools.pairwise(parts)):
                score = scores.get(left + right)
                if score is not None and (best is None or score > best) and chance() >= rate:
                    best, at = score, place
            if at is None:
                return parts
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
