"""Filters that drop sentence pairs because of their text, their length, duplicates or overlap with another split."""

import functools
from dataclasses import dataclass

import numpy as np

from keras_transformer.data.language_tags import without_tag
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.text import text_digest

SCRIPT_SHARE = 0.5
"""Minimum share of the letters of a source or target that must belong to the expected scripts."""
EMPTY = "dropped_with_an_empty_side"
OVERLAP, DUPLICATES = "dropped_as_validation_or_test_pairs", "dropped_as_duplicates"
SOURCE_DUPLICATES = "dropped_as_source_duplicates"


@dataclass(frozen=True, kw_only=True)
class PairFilter:
    """Rules that drop pairs of a split. By default, no rule is active.

    Attributes:
        drop_empty: Whether to drop pairs with a side that has no tokens.
        drop_control: Whether to drop pairs with control, private-use or replacement characters.
        drop_copies: Whether to drop pairs in which source and target differ at most in case and white space.
        min_letters: Minimum share of letters among the non-space characters of each side, from 0 to 1.
        source_script, target_script: Unicode scripts, separated by commas, to which at least `SCRIPT_SHARE` of the
            letters of a side must belong.
        min_tokens, max_tokens: Minimum and maximum number of tokens on each side, including EOS.
        max_length_ratio: Maximum ratio of the longer side to the shorter side, in tokens including EOS.
        drop_overlap: "pairs" to drop pairs that are also in another split, "sources" to drop all pairs whose source is
            also in another split, or None.
        drop_duplicates: Whether to keep only the first of identical pairs.
        drop_source_duplicates: Whether to keep only the first of all pairs with the same source.
    """

    drop_empty: bool = False
    drop_control: bool = False
    drop_copies: bool = False
    min_letters: float | None = None
    source_script: str | None = None
    target_script: str | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    max_length_ratio: float | None = None
    drop_overlap: str | None = None
    drop_duplicates: bool = False
    drop_source_duplicates: bool = False

    def by_pair(self, pairs, lengths):
        """Apply the rules for single pairs, and return the pairs to drop as {reason: bool `[pairs]`}.

        The result has an entry for each active rule. A pair is marked only under the first rule that applies to it.

        Args:
            pairs: List of pairs of texts.
            lengths: int32 `[2, pairs]`, the numbers of tokens in the sources and in the targets, including EOS.
        """
        found, left = {}, np.full(len(pairs), True)
        for reason, rule in self._rules().items():
            found[reason] = rule(pairs, lengths) & left
            left &= ~found[reason]
        return found

    def _rules(self):
        shortest, longest = self.min_tokens or 0, self.max_tokens or np.inf
        rules = {
            EMPTY: (self.drop_empty, lambda _, lengths: lengths.min(0) == 1),
            "dropped_with_control_characters": (self.drop_control, _any_side(has_control)),
            "dropped_as_copies": (self.drop_copies, _each(lambda source, target: _plain(source) == _plain(target))),
            "dropped_for_few_letters": (
                self.min_letters, _any_side(lambda text: letter_share(text) < self.min_letters)
            ),
            "dropped_for_their_script": (self.source_script or self.target_script, _each(self._wrong_script)),
            "dropped_for_their_length": (
                self.min_tokens or self.max_tokens,
                lambda _, lengths: (lengths.min(0) < shortest) | (lengths.max(0) > longest),
            ),
            "dropped_for_their_length_ratio": (
                self.max_length_ratio, lambda _, lengths: lengths.max(0) > self.max_length_ratio * lengths.min(0)
            ),
        }  # fmt: skip
        return {reason: rule for reason, (active, rule) in rules.items() if active}

    def _wrong_script(self, source, target):
        sides = (source, self.source_script), (target, self.target_script)
        return any(scripts and script_share(text, scripts) < SCRIPT_SHARE for text, scripts in sides)

    def by_corpus(self, blocks, held_out):
        """Apply the rules that compare pairs with each other, and return the pairs to drop as {reason: bool `[pairs]`}.

        A pair is marked only under the first rule that applies to it.

        Args:
            blocks: Function that takes "pairs" or "sources" and returns an iterator over uint64 arrays with the hashes
                of all pairs or of all sources.
            held_out: {"pairs" or "sources": uint64 array}, the hashes of the other splits.
        """
        found = {}
        if self.drop_overlap:
            masks = [np.isin(block, held_out[self.drop_overlap]) for block in blocks(self.drop_overlap)]
            found[OVERLAP] = np.concatenate([np.empty(0, bool), *masks])
        for active, reason, kind in (
            (self.drop_duplicates, DUPLICATES, "pairs"),
            (self.drop_source_duplicates, SOURCE_DUPLICATES, "sources"),
        ):
            if active:
                hashes = np.concatenate([np.empty(0, np.uint64), *blocks(kind)])
                left = np.flatnonzero(~np.logical_or.reduce([np.full(len(hashes), False), *found.values()]))
                found[reason] = np.full(len(hashes), False)
                found[reason][left[~first_occurrences(hashes[left])]] = True
        return found


class TaggedPairFilter(PairFilter):
    """`PairFilter` for sources that begin with a language tag.

    Length rules and rules that compare pairs treat the tag as part of the source. All other rules ignore the tag.
    """

    def by_pair(self, pairs, lengths):
        return super().by_pair([(without_tag(source), target) for source, target in pairs], lengths)


def _each(drops):
    """Return a rule that applies a function of source and target to each pair."""
    return lambda pairs, _: np.fromiter((drops(*pair) for pair in pairs), bool, len(pairs))


def _any_side(drops):
    """Return a rule that applies a function of one text to both sides of each pair."""
    return _each(lambda source, target: drops(source) or drops(target))


def _plain(text):
    return " ".join(text.casefold().split())


@functools.lru_cache
def _pattern(text):
    import regex

    return regex.compile(text)


def has_control(text):
    """Return whether a text contains control characters (except white space), private-use or replacement characters."""
    return bool(_pattern(r"[\p{Cc}\p{Co}\p{Cs}\ufffd]").search("".join(text.split())))


def letter_share(text):
    """Return the share of letters and accents among the non-space characters of a text."""
    characters = "".join(text.split())
    return len(_pattern(r"[^\p{L}\p{M}]+").sub("", characters)) / max(len(characters), 1)


def script_share(text, scripts):
    """Return the share of a text's letters that belong to the given scripts, or 1 for a text without letters.

    The function ignores letters that belong to several scripts.

    Args:
        text: A text.
        scripts: Names of Unicode scripts, separated by commas, such as "Han,Hiragana,Katakana".
    """
    letters = _pattern(r"\P{L}+|[\p{Script=Common}\p{Script=Inherited}]+").sub("", text)
    return len(_pattern(f"[^{script_classes(scripts)}]+").sub("", letters)) / len(letters) if letters else 1.0


@functools.lru_cache
def script_classes(scripts):
    """Convert names of Unicode scripts, separated by commas, to the content of a regular expression's character class.

    Raises:
        UserError: A name is not the name of a Unicode script.
    """
    import regex

    classes = [rf"\p{{Script={name.strip()}}}" for name in scripts.split(",")]
    for name, each in zip(scripts.split(","), classes):
        try:
            regex.compile(each)
        except regex.error:
            raise UserError(
                f"a Unicode script must be a name such as Latin, Cyrillic, Arabic or Han, got {name.strip()!r}. "
                "The file Scripts.txt of the Unicode standard lists all names."
            ) from None
    return "".join(classes)


def hash_pairs(pairs):
    """Return a 64-bit hash of each pair of texts, uint64 `[pairs]`.

    In a corpus of 40 million pairs, the probability that two different pairs have the same hash is 1 in 20,000.
    """
    return hash_texts(f"{len(source)} {source}{target}" for source, target in pairs)


def hash_texts(texts):
    """Return a 64-bit hash of each text, uint64 `[texts]`."""
    return np.frombuffer(b"".join(map(text_digest, texts)), dtype="<u8")


def first_occurrences(hashes):
    """Return a bool mask `[hashes]` that is True at the first occurrence of each hash."""
    first = np.full(len(hashes), False)
    first[np.unique(hashes, return_index=True)[1]] = True
    return first
