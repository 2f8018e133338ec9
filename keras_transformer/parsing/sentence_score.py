"""Bracket counts of one sentence, computed with the rules of EVALB.

A terminal of a tree is a bracket of the form `(TAG word)`. All other brackets have a span of words and a label, which
ends before the first "-" or "=". The parameter DELETE_LABEL lists deleted tags and labels. EVALB ignores words with a
deleted tag, and brackets with a deleted label or without words. A test bracket matches a gold bracket with the same
span and label. Each bracket has at most one match.
"""

import dataclasses
import re
from typing import NamedTuple

from keras_transformer.utils.errors import UserError

VALID, ERROR, SKIPPED = range(3)  # values of `status`, as EVALB prints them

# Words are separated by ASCII white space, as in `parsing.tree`. A no-break space is part of a word.
_TOKEN = re.compile(
    r"\(\s*(?P<tag>[^\s()]+)\s+(?P<terminal>[^\s()]+)\s*\)|\(\s*(?P<open>[^\s()]*)|(?P<close>\))|(?P<bare>[^\s()]+)",
    re.ASCII,
)
_LABEL_END = re.compile("[-=]")


class _Malformed(Exception):
    """Error for malformed brackets in a line."""


class _Side(NamedTuple):
    """Words, tags, brackets (label, start, end) and length of a sentence in the gold or test file."""

    words: list
    tags: list
    brackets: list
    length: int


@dataclasses.dataclass(frozen=True)
class SentenceScore:
    """Counts of one sentence.

    All counts of error sentences and skipped sentences are 0, except `length`, `words`, `gold` and `test`. In their
    table rows, `gold` and `test` are also 0, as in EVALB.

    Attributes:
        number: Number of the sentence, starting at 1.
        length: Number of words in the gold file, including punctuation.
        status: 0 for a valid sentence, 1 for an error sentence, 2 for a skipped sentence.
        message: Reason why the sentence is not valid, or "" if it is valid.
        matched, gold, test: Numbers of matching brackets, gold brackets and test brackets.
        crossing: Number of test brackets that cross a gold bracket.
        words: Number of gold words, excluding words with a deleted tag.
        correct_tags: Number of words whose test tag equals the gold tag.
        matches: A pair (gold label, test label) for each match.
        gold_labels, test_labels: Labels of the gold brackets and of the test brackets.
    """

    number: int
    length: int
    status: int = VALID
    message: str = ""
    matched: int = 0
    gold: int = 0
    test: int = 0
    crossing: int = 0
    words: int = 0
    correct_tags: int = 0
    matches: tuple = ()
    gold_labels: tuple = ()
    test_labels: tuple = ()

    @property
    def recall(self):
        """Percentage of gold brackets that match."""
        return percent(self.matched, self.gold)

    @property
    def precision(self):
        """Percentage of test brackets that match."""
        return percent(self.matched, self.test)

    def __str__(self):
        """Return the row of the sentence in EVALB's table."""
        gold, test = (self.gold, self.test) if self.status == VALID else (0, 0)
        return (
            f"{self.number:4d}  {self.length:3d}    {self.status}  {self.recall:6.2f} {self.precision:6.2f}"
            f"   {self.matched:3d}    {gold:3d}  {test:3d}    {self.crossing:3d}"
            f"   {self.words:4d}  {self.correct_tags:4d}   {percent(self.correct_tags, self.words):6.2f}"
        )


def score_sentence(gold_text, test_text, parameters, number=1, gold_name="the gold file"):
    """Return the `SentenceScore` of a sentence.

    Args:
        gold_text: Line of the gold file.
        test_text: Line of the test file.
        parameters: `Parameters`.
        number: Line number of the sentence, starting at 1.
        gold_name: Name of the gold file, for error messages.

    Raises:
        UserError: The brackets of the gold line are malformed.
    """
    try:
        gold = _read_side(gold_text, parameters)
    except _Malformed as fault:
        raise UserError(f"{gold_name}:{number}: {fault}") from None
    counts = {"number": number, "length": gold.length, "words": len(gold.words), "gold": len(gold.brackets)}
    try:
        test = _read_side(test_text, parameters)
    except _Malformed as fault:
        return SentenceScore(**counts, status=ERROR, message=str(fault))
    counts["test"] = len(test.brackets)
    if not test.words:
        return SentenceScore(**counts, status=SKIPPED, message="No words in the test line")
    if len(gold.words) != len(test.words):
        message = f"Length unmatch ({len(gold.words)}|{len(test.words)})"
        return SentenceScore(**counts, status=ERROR, message=message)
    for one, other in zip(gold.words, test.words):
        if not parameters.same_word(one, other):
            return SentenceScore(**counts, status=ERROR, message=f"Words unmatch ({one}|{other})")
    matches = _matches(gold.brackets, test.brackets, parameters)
    return SentenceScore(
        **counts,
        matched=len(matches),
        crossing=_count_crossing(gold.brackets, test.brackets),
        correct_tags=sum(map(parameters.same_label, gold.tags, test.tags)),
        matches=tuple(matches),
        gold_labels=tuple(label for label, _, _ in gold.brackets),
        test_labels=tuple(label for label, _, _ in test.brackets),
    )


def percent(part, whole):
    """Return 100 · part / whole, or 0.0 if the whole is 0."""
    return 100 * part / whole if whole else 0.0


def _read_side(text, parameters):
    """Return the `_Side` of a line of brackets."""
    terminals, brackets = _read_brackets(text)
    words, tags = [], []
    before = [0]  # number of `words` before each terminal, then the total
    for tag, word in terminals:
        if tag not in parameters.delete_labels:
            words.append(word)
            tags.append(tag)
        before.append(len(words))
    counted = []
    for label, start, end in brackets:
        start, end = before[start], before[end]
        label = _LABEL_END.split(label, maxsplit=1)[0]
        if start < end and label not in parameters.brackets_left_out:
            counted.append((label, start, end))
    length = sum(tag not in parameters.delete_labels_for_length for tag, _ in terminals)
    return _Side(words, tags, counted, length)


def _read_brackets(text):
    """Return (tag, word) for the terminals of a line, and (label, start, end) for other brackets, outer brackets first.

    The function uses a stack, because deeply nested brackets would exceed Python's recursion limit.
    """
    terminals, brackets, stack = [], [], []
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "terminal":
            terminals.append((token["tag"], token["terminal"]))
        elif kind == "open":
            stack.append((len(brackets), token["open"], len(terminals)))
            brackets.append(None)
        elif kind == "bare" and stack:
            raise _Malformed(f"{token[0]!r} has no tag; write each word as (TAG word)")
        elif not stack:
            raise _Malformed(f"{token[0]!r} is outside of the trees; each tree begins with '(' and ends with its ')'")
        else:
            place, label, start = stack.pop()
            if label or stack:  # omit the Penn Treebank's outer bracket, which has no label
                brackets[place] = (label, start, len(terminals))
    if stack:
        raise _Malformed(f"{len(stack)} missing ')'; close each '(' in the same line")
    return terminals, [bracket for bracket in brackets if bracket is not None]


def _matches(gold, test, parameters):
    """Return the labels (gold, test) of matching brackets. Each gold bracket takes the first unused match."""
    labels = {}
    for label, start, end in test:
        labels.setdefault((start, end), []).append(label)
    matches = []
    for label, start, end in gold:
        left = labels.get((start, end), [])
        for place, other in enumerate(left):
            if not parameters.labelled or parameters.same_label(label, other):
                matches.append((label, left.pop(place)))
                break
    return matches


def _count_crossing(gold, test):
    """Return the number of test brackets that partially overlap a gold bracket, so that neither contains the other."""
    spans = {(start, end) for _, start, end in gold}
    return sum(any(s < start < e < end or start < s < end < e for s, e in spans) for _, start, end in test)
