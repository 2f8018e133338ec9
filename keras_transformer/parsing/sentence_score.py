"""The counts of one sentence: which brackets of a parse match the gold brackets, by EVALB's rules.

The words of a sentence are its terminals, `(TAG word)`, except those under a deleted tag. Each other bracket counts
with the words it spans and its label up to the first "-" or "=", unless it spans none or its label is deleted. A
bracket of the test side matches one of the gold side with the same span and label, each at most one.
"""

import dataclasses
import re
from typing import NamedTuple

from keras_transformer.utils.errors import UserError

VALID, ERROR, SKIPPED = range(3)  # the states of a sentence, as EVALB prints them

# ASCII, as in `trees.tree`: a no-break space is part of a word.
_TOKEN = re.compile(
    r"\(\s*(?P<tag>[^\s()]+)\s+(?P<terminal>[^\s()]+)\s*\)|\(\s*(?P<open>[^\s()]*)|(?P<close>\))|(?P<bare>[^\s()]+)",
    re.ASCII,
)
_LABEL_END = re.compile("[-=]")


class _Malformed(Exception):
    """What is wrong with the brackets of a line, and what to do."""


class _Side(NamedTuple):
    """What counts of one side of a sentence: words, their tags, (label, start, end) of brackets, and the length."""

    words: list
    tags: list
    brackets: list
    length: int


@dataclasses.dataclass(frozen=True)
class SentenceScore:
    """The counts of one sentence.

    An error sentence or a skipped one has only `length`, `words`, `gold` and `test`. EVALB prints 0 for the last two.

    Attributes:
        number: Its place, from 1.
        length: Its words in the gold file, punctuation among them.
        status: 0 valid, 1 an error, 2 skipped.
        message: Why it is not valid, else "".
        matched, gold, test: Brackets that match, of the gold side and of the test side.
        crossing: Brackets of the test side that cross one of the gold side.
        words: Words of the gold side that count.
        correct_tags: Of those, how many have the gold side's tag.
        matches: (label of the gold side, label of the test side) of each match.
        gold_labels, test_labels: The labels of `gold` and of `test`.
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
        """Matched brackets of the gold side's, in per cent."""
        return percent(self.matched, self.gold)

    @property
    def precision(self):
        """Matched brackets of the test side's, in per cent."""
        return percent(self.matched, self.test)

    def __str__(self):
        """The sentence's row of EVALB's table."""
        gold, test = (self.gold, self.test) if self.status == VALID else (0, 0)
        return (
            f"{self.number:4d}  {self.length:3d}    {self.status}  {self.recall:6.2f} {self.precision:6.2f}"
            f"   {self.matched:3d}    {gold:3d}  {test:3d}    {self.crossing:3d}"
            f"   {self.words:4d}  {self.correct_tags:4d}   {percent(self.correct_tags, self.words):6.2f}"
        )


def score_sentence(gold_text, test_text, parameters, number=1, gold_name="the gold file"):
    """Return the `SentenceScore` of a sentence.

    Args:
        gold_text: Its brackets in the gold file.
        test_text: Those of its parse.
        parameters: `Parameters`.
        number: Its place, from 1.
        gold_name: What an error calls the gold file.

    Raises:
        UserError: The brackets of the gold text are malformed.
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
    """The `_Side` of a line of brackets."""
    terminals, brackets = _read_brackets(text)
    words, tags = [], []
    before = [0]  # of each terminal, and of the end: how many words that count precede it
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
    """The (tag, word) of all terminals of a line, and the (label, start, end) of its other brackets, outer ones first.

    A loop with a stack, as a parser's output may be nested deeper than Python's recursion.
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
            raise _Malformed(f"{token[0]!r} has no tag of its own; write each word as (TAG word)")
        elif not stack:
            raise _Malformed(f"{token[0]!r} stands outside of any tree; each begins with '(' and ends with its ')'")
        else:
            place, label, start = stack.pop()
            if label or stack:  # not the Penn Treebank's outer bracket
                brackets[place] = (label, start, len(terminals))
    if stack:
        raise _Malformed(f"{len(stack)} ')' are missing; each '(' needs one in the same line")
    return terminals, [bracket for bracket in brackets if bracket is not None]


def _matches(gold, test, parameters):
    """The (gold, test) labels of gold brackets that match a test one, each the first that none before it has taken."""
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
    """Number of test brackets that overlap with a gold one and neither is within the other."""
    spans = {(start, end) for _, start, end in gold}
    return sum(any(s < start < e < end or start < s < end < e for s, e in spans) for _, start, end in test)
