"""Labeled bracketing scores of parses, computed as in the program EVALB (Sekine and Collins).

`sentence_score` implements the rules for one sentence. An error sentence is one whose words differ from the gold words
or whose test brackets are malformed. The scores differ from those of EVALB in the following ways:

- This module ignores the Penn Treebank's unlabeled outer bracket, as in `( (S ...))`. EVALB counts it as a bracket
  with an empty label.
- Spaces around brackets do not matter.
- In the output, all counts except the words are zero in the row of an error sentence, even if its brackets are
  malformed.
- A malformed test line without words is an error sentence. EVALB skips its sentence.
- There is no maximum number of errors after which scoring stops.

EVALB ignores error sentences. A parser's scores therefore improve if it fails on hard sentences. `f1_of_all_sentences`
includes error sentences and counts all their brackets as unmatched.
"""

import collections
import dataclasses
import re

import numpy as np

from keras_transformer.metrics.bleu import Score
from keras_transformer.metrics.lengths import length_buckets
from keras_transformer.metrics.significance import COMPARISONS, by_resampling
from keras_transformer.parsing.evalb_parameters import Parameters
from keras_transformer.parsing.sentence_score import ERROR, SKIPPED, VALID, percent, score_sentence
from keras_transformer.utils.errors import UserError

F1_OF_ALL = "F1 of all sentences"
COUNTS = ("matched", "gold", "test")
RULES = "EVALB's rules, COLLINS.prm, labelled"

_TEXT = re.compile(r"\S", re.ASCII)

_HEADER = (
    "  Sent.                        Matched  Bracket   Cross        Correct Tag",
    " ID  Len.  Stat. Recal  Prec.  Bracket gold test Bracket Words  Tags Accracy",
)
_RULE = "=" * 76
_FIGURES = (
    "Number of sentence", "Number of Error sentence", "Number of Skip  sentence", "Number of Valid sentence",
    "Bracketing Recall", "Bracketing Precision", "Bracketing FMeasure", "Complete match", "Average crossing",
    "No crossing", "2 or less crossing", "Tagging accuracy",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LabelScore:
    """Score of the brackets with one label in all valid sentences.

    Attributes:
        label: The label.
        gold, test: Numbers of gold brackets and test brackets.
        recall: Percentage of gold brackets that match.
        precision: Percentage of test brackets that match.
    """

    label: str
    gold: int
    test: int
    recall: float
    precision: float

    @property
    def f1(self):
        """Harmonic mean of recall and precision, in percent."""
        return _harmonic_mean(self.recall, self.precision)

    def figures(self):
        """Return all numbers as {name: number}."""
        return {name: getattr(self, name) for name in ("gold", "test", "recall", "precision", "f1")}


@dataclasses.dataclass(frozen=True)
class Parseval:
    """Scores of a test file. All except `f1_of_all_sentences` ignore error sentences and skipped sentences.

    Attributes:
        sentences: Tuple of `SentenceScore`s.
        parameters: EVALB `Parameters` used for the scores.
    """

    sentences: tuple
    parameters: Parameters

    def up_to(self, cutoff):
        """Return the `Parseval` of sentences with at most `cutoff` words."""
        return Parseval(tuple(one for one in self.sentences if one.length <= cutoff), self.parameters)

    def total(self, name):
        """Return the sum of a count, such as "matched", over all valid sentences."""
        return sum(getattr(sentence, name) for sentence in self._valid())

    @property
    def errors(self):
        """Number of error sentences. Their words differ from the gold words, or their test brackets are malformed."""
        return sum(sentence.status == ERROR for sentence in self.sentences)

    @property
    def skipped(self):
        """Number of skipped sentences, which have no words in the test file."""
        return sum(sentence.status == SKIPPED for sentence in self.sentences)

    @property
    def valid(self):
        """Number of valid sentences, which are all sentences except error sentences and skipped sentences."""
        return len(self._valid())

    @property
    def recall(self):
        """Percentage of gold brackets that match."""
        return percent(self.total("matched"), self.total("gold"))

    @property
    def precision(self):
        """Percentage of test brackets that match."""
        return percent(self.total("matched"), self.total("test"))

    @property
    def f1(self):
        """Harmonic mean of recall and precision, in percent."""
        return _harmonic_mean(self.recall, self.precision)

    @property
    def f1_of_all_sentences(self):
        """F1 in percent over all sentences. In error and skipped sentences, all brackets count as unmatched.

        If a test line is malformed, only the gold brackets count.
        """
        return float(f1_of_counts(*(sum(getattr(one, name) for one in self.sentences) for name in COUNTS)))

    @property
    def complete_match(self):
        """Percentage of sentences in which all brackets match."""
        return self._share(lambda sentence: sentence.gold == sentence.test == sentence.matched)

    @property
    def average_crossing(self):
        """Average number of crossing brackets per sentence."""
        return self.total("crossing") / self.valid if self.valid else 0.0

    @property
    def no_crossing(self):
        """Percentage of sentences without crossing brackets."""
        return self._share(lambda sentence: sentence.crossing == 0)

    @property
    def two_or_less_crossing(self):
        """Percentage of sentences with at most two crossing brackets."""
        return self._share(lambda sentence: sentence.crossing <= 2)

    @property
    def tagging_accuracy(self):
        """Percentage of words with the correct tag."""
        return percent(self.total("correct_tags"), self.total("words"))

    def table(self):
        """Return the output of EVALB: the table, its total row and the two summaries.

        The total in the column Cross is the sum over the rows. Older versions of EVALB print the number of sentences
        without crossing brackets instead.
        """
        return "\n".join([*_HEADER, _RULE, *map(str, self.sentences), _RULE, self._total_row(), self.summary()])

    def summary(self):
        """Return the two summaries: scores of all sentences, and of sentences up to the cutoff length."""
        cutoff = self.parameters.cutoff_length
        short = [f"-- len<={cutoff} --", *self.up_to(cutoff)._lines()]
        return "\n".join(["=== Summary ===", "", "-- All --", *self._lines(), "", *short]) + "\n"

    def by_length(self):
        """Return {"1-10": `Parseval`, …} for each range of sentence lengths that occurs."""
        buckets = length_buckets([sentence.length for sentence in self.sentences])
        return {
            words: Parseval(tuple(self.sentences[row] for row in rows), self.parameters)
            for words, rows in buckets.items()
        }

    def by_label(self):
        """Return the `LabelScore` of each label, sorted by decreasing number of gold brackets.

        If two different labels count as equal, a match between them counts towards the recall of the gold label and the
        precision of the test label.
        """
        gold, test, found, right = (collections.Counter() for _ in range(4))
        for sentence in self._valid():
            gold.update(sentence.gold_labels)
            test.update(sentence.test_labels)
            found.update(label for label, _ in sentence.matches)
            right.update(label for _, label in sentence.matches)
        labels = sorted(gold | test, key=lambda label: (-gold[label], -test[label], label))
        return [
            LabelScore(one, gold[one], test[one], percent(found[one], gold[one]), percent(right[one], test[one]))
            for one in labels
        ]

    def _valid(self):
        return [sentence for sentence in self.sentences if sentence.status == VALID]

    def _share(self, condition):
        return percent(sum(map(condition, self._valid())), self.valid)

    def _total_row(self):
        matched, gold, test, crossing = map(self.total, ("matched", "gold", "test", "crossing"))
        return (
            f"{'':16}{self.recall:6.2f} {self.precision:6.2f} {matched:6d}    {gold:3d}  {test:3d}    {crossing:3d}"
            f"   {self.total('words'):4d}  {self.total('correct_tags'):4d}   {self.tagging_accuracy:6.2f}"
        )

    def figures(self):
        """Return {name: number} with the numbers of EVALB's summary, in the same order, and the F1 of all sentences."""
        names = ["errors", "skipped", "valid", "recall", "precision", "f1", "complete_match", "average_crossing"]
        names += ["no_crossing", "two_or_less_crossing", "tagging_accuracy", "f1_of_all_sentences"]
        return {"sentences": len(self.sentences), **{name: getattr(self, name) for name in names}}

    def left_out(self):
        """Return a text that explains how the F1 of all sentences treats errors and skipped sentences."""
        return f"{self.errors:,} errors and {self.skipped:,} skipped count as unmatched"

    def scores(self):
        """Return three `Score`s: the number of error sentences, EVALB's F1, and the F1 of all sentences.

        Call this only if the parameters are those of COLLINS.prm, because the signatures name this file.
        """
        evalb = f"{self.valid} of {len(self.sentences)} sentences ({self.errors} errors, {self.skipped} skipped)"
        return [
            Score("error sentences", self.errors, f"{RULES}; of {len(self.sentences)} sentences"),
            Score("F1", self.f1, f"{RULES}; {evalb}"),
            Score(F1_OF_ALL, self.f1_of_all_sentences, f"{RULES}; {self.left_out()}"),
        ]

    def _lines(self):
        return [
            f"{name:25} = {figure:6d}" if isinstance(figure, int) else f"{name:25} = {figure:6.2f}"
            for name, figure in zip(_FIGURES, self.figures().values())
        ]


def parseval(golds, tests, parameters=None, gold_name="the gold file", test_name="the test file"):
    """Score parses and return a `Parseval`. Ignore trailing lines that are blank in both files.

    Args:
        golds: Lines of the gold file, each with one bracketed sentence.
        tests: Lines of the test file, with parses of the same sentences. A blank line is a skipped sentence, and a line
            with malformed brackets is an error sentence.
        parameters: `Parameters` (default: COLLINS.prm).
        gold_name: Name of the gold file for error messages.
        test_name: Name of the test file for error messages.

    Raises:
        UserError: The numbers of lines differ, or the brackets of a gold line are malformed.
    """
    parameters = parameters or Parameters()
    golds, tests = list(golds), list(tests)
    end = _end(golds, tests)
    if end > min(len(golds), len(tests)):
        raise UserError(
            f"{gold_name} and {test_name} must have the same number of sentences, got {len(golds)} and {len(tests)}. "
            "Each line must contain one sentence. To write each tree on one line, use trees --format=line."
        )
    pairs = enumerate(zip(golds[:end], tests[:end]), start=1)
    scores = (score_sentence(gold, test, parameters, number, gold_name) for number, (gold, test) in pairs)
    return Parseval(tuple(scores), parameters)


def f1_of_counts(matched, gold, test):
    """Return the F1 in percent for bracket counts, scalars or NumPy arrays. Without brackets, F1 is 0."""
    return 200 * matched / np.maximum(gold + test, 1)


def compare_f1(system, other, rules=RULES):
    """Compare the F1 of all sentences of two parsers by paired bootstrap (Koehn 2004).

    Args:
        system, other: `Parseval`s of the parsers, for the same gold trees. If one has fewer sentences, because trailing
            blank lines were ignored, the missing sentences have no brackets.
        rules: Description of the rules for the signature.

    Returns:
        `Comparison`, with a two-sided p-value.
    """
    counts = np.zeros((2, max(len(one.sentences) for one in (system, other)), len(COUNTS)), "int64")
    for of_system, one in zip(counts, (system, other)):
        for of_sentence, sentence in zip(of_system, one.sentences):
            of_sentence[:] = [getattr(sentence, name) for name in COUNTS]
    return by_resampling(F1_OF_ALL, counts, lambda counts: f1_of_counts(*counts.sum(axis=1).T), rules)


def _harmonic_mean(recall, precision):
    return 2 * recall * precision / (recall + precision) if recall + precision else 0.0


def _end(*files):
    """Return the number of lines, not counting trailing lines that are blank in all files."""
    return max((i for lines in files for i, line in enumerate(lines, start=1) if _TEXT.search(line)), default=0)


def _compare_f1(metric, outputs, others, references):
    parameters = Parameters()
    systems = (
        Parseval(tuple(score_sentence(*pair, parameters) for pair in zip(references, texts)), parameters)
        for texts in (outputs, others)
    )
    return compare_f1(*systems)


COMPARISONS[F1_OF_ALL] = _compare_f1
