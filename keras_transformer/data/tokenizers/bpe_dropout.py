"""BPE-dropout (Provilkov et al. 2020): the same text in other pieces, for small corpora.

Byte-pair encoding puts a word together from its characters, of all pairs that are a piece always the one learned first.
Here each pair is passed over with a certain probability, each time anew, so that a model meets the same words in
different pieces and learns what they are made of. Without dropout the pieces are the tokenizer's own.

SentencePiece's own sampling is not used: with the same seed it gives other pieces in each process, so neither a resumed
preparation nor several workers could give the same corpus.
"""

import itertools

import numpy as np

LONGEST = 100  # characters; longer words stay as they are, because the time grows with the square


class BPEDropout:
    """Cuts the words of sequences of ids anew.

    Args:
        pieces: Piece of each id.
        scores: Score of each id's piece: of two pairs the one with the higher score is joined first.
        word_starts: `[vocab_size]`: 1 for ids that begin a word.
        kept: Ids whose words stay as they are, UNK among them.
    """

    def __init__(self, pieces, scores, word_starts, kept):
        self._pieces, self._starts, self._kept = pieces, np.asarray(word_starts) == 1, frozenset(kept)
        self._ids = {piece: i for i, piece in enumerate(pieces) if i not in self._kept}
        self._scores = {piece: scores[i] for piece, i in self._ids.items()}

    def __call__(self, ids, rate, random):
        """Returns the ids of the same text in other pieces; words of more than `LONGEST` characters keep theirs.

        Args:
            ids: Sequence of ids, without BOS and EOS.
            rate: Probability that a pair is passed over.
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
