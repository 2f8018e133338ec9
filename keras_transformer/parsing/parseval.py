"""Labelled bracketing scores of parses, counted as the program EVALB (Sekine and Collins) counts them.

`sentence_score` has the rules for one sentence. There are some differences to EVALB:

- The outer bracket without a label in the Penn Treebank, `( (S ...))`, does not count, like TOP. EVALB would count a
  bracket whose label is empty.
- Blanks around brackets do not matter.
- The row of an error sentence has zeros, also if its brackets are malformed.
- The count does not stop after a maximum number of errors.

EVALB leaves error sentences out, so a parser can gain by making errors in hard sentences. `f1_of_all_sentences` counts
these sentences: none of their brackets match.
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
from keras_transformer.parsing.tree import read_trees
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
    """The score of a label's brackets, over all sentences that count.

    Attributes:
        label: The label.
        gold, test: Brackets with it on either side.
        recall: Those of the gold side that match, in per cent.
        precision: Those of the test side that match, in per cent.
    """

    label: str
    gold: int
    test: int
    recall: float
    precision: float

    @property
    def f1(self):
        """Harmonic mean of recall and precision, in per cent."""
        return _harmonic_mean(self.recall, self.precision)

    def figures(self):
        """Return {name: figure} of all but the label."""
        return {name: getattr(self, name) for name in ("gold", "test", "recall", "precision", "f1")}


@dataclasses.dataclass(frozen=True)
class Parseval:
    """The scores of a test file. All but `f1_of_all_sentences` leave out error sentences and skipped ones.

    Attributes:
        sentences: `SentenceScore`s.
        parameters: The `Parameters` they were counted by.
    """

    sentences: tuple
    parameters: Parameters

    def totals(self, cutoff=None):
        """Return the `Parseval` of the sentences up to a length; of all if it is None."""
        if cutoff is None:
            return self
        return Parseval(tuple(one for one in self.sentences if one.length <= cutoff), self.parameters)

    def total(self, name):
        """Return the sum of a count, such as "matched", over the valid sentences."""
        return sum(getattr(sentence, name) for sentence in self._valid())

    @property
    def errors(self):
        """Number of sentences whose words or brackets make them an error."""
        return sum(sentence.status == ERROR for sentence in self.sentences)

    @property
    def skipped(self):
        """Number of sentences without a word on the test side."""
        return sum(sentence.status == SKIPPED for sentence in self.sentences)

    @property
    def valid(self):
        """Number of sentences that count."""
        return len(self._valid())

    @property
    def recall(self):
        """Matched brackets of the gold side's, in per cent."""
        return percent(self.total("matched"), self.total("gold"))

    @property
    def precision(self):
        """Matched brackets of the test side's, in per cent."""
        return percent(self.total("matched"), self.total("test"))

    @property
    def f1(self):
        """Harmonic mean of recall and precision, in per cent."""
        return _harmonic_mean(self.recall, self.precision)

    @property
    def f1_of_all_sentences(self):
        """F1, in per cent, with the brackets of error sentences and skipped ones as unmatched.

        Their gold brackets are missed and their test brackets wrong. Malformed test brackets cannot be counted.
        """
        return float(f1_of_counts(*(sum(getattr(one, name) for one in self.sentences) for name in COUNTS)))

    @property
    def complete_match(self):
        """Share of sentences all of whose brackets match, in per cent."""
        return self._share(lambda sentence: sentence.gold == sentence.test == sentence.matched)

    @property
    def average_crossing(self):
        """Crossing brackets per sentence."""
        return self.total("crossing") / self.valid if self.valid else 0.0

    @property
    def no_crossing(self):
        """Share of sentences without a crossing bracket, in per cent."""
        return self._share(lambda sentence: sentence.crossing == 0)

    @property
    def two_or_less_crossing(self):
        """Share of sentences with at most two crossing brackets, in per cent."""
        return self._share(lambda sentence: sentence.crossing <= 2)

    @property
    def tagging_accuracy(self):
        """Share of words with the gold side's tag, in per cent."""
        return percent(self.total("correct_tags"), self.total("words"))

    def rows(self):
        """Return the rows of EVALB's table, one for each sentence."""
        return [str(sentence) for sentence in self.sentences]

    def table(self):
        """Return what EVALB prints: the table, its total row and the two summaries.

        The total row's Cross column is the sum of the rows', as EVALB's later versions have it.
        """
        return "\n".join([*_HEADER, _RULE, *self.rows(), _RULE, self._total_row(), self.summary()])

    def summary(self):
        """Return the end of the table: the scores of all sentences, and of those up to the cut-off length."""
        cutoff = self.parameters.cutoff_length
        short = [f"-- len<={cutoff} --", *self.totals(cutoff)._lines()]
        return "\n".join(["=== Summary ===", "", "-- All --", *self._lines(), "", *short]) + "\n"

    def by_length(self):
        """Return {"1-10": `Parseval`, …}: the scores of the sentences of each length that there is."""
        buckets = length_buckets([sentence.length for sentence in self.sentences])
        return {
            words: Parseval(tuple(self.sentences[row] for row in rows), self.parameters)
            for words, rows in buckets.items()
        }

    def by_label(self):
        """Return the `LabelScore`s of all labels, those with most gold brackets first.

        Where parameters make labels equal, a match counts for the gold side's label in its recall and for the test
        side's in its precision.
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
        """Return {name: figure} of what EVALB's summary holds, in its order, and the F1 of all sentences."""
        names = ["errors", "skipped", "valid", "recall", "precision", "f1", "complete_match", "average_crossing"]
        names += ["no_crossing", "two_or_less_crossing", "tagging_accuracy", "f1_of_all_sentences"]
        return {"sentences": len(self.sentences), **{name: getattr(self, name) for name in names}}

    def left_out(self):
        """Return what distinguishes the F1 of all sentences from EVALB's, as text."""
        return f"{self.errors:,} errors and {self.skipped:,} skipped count as unmatched"

    def scores(self):
        """Return three `Score`s by the parameters of COLLINS.prm.

        They are the number of error sentences, EVALB's F1, and the F1 of all sentences.
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
    """Return the `Parseval` of parses; blank lines at the end of both files are no sentences.

    Args:
        golds: Lines of brackets, one sentence each; `trees_as_lines` makes them of other files.
        tests: Lines of as many parses; a blank one is skipped, and one whose brackets are malformed is an error.
        parameters: `Parameters`, by default those of COLLINS.prm.
        gold_name: What an error calls the gold lines: their file.
        test_name: What an error calls the others.

    Raises:
        UserError: The numbers of lines differ, or the brackets of a gold line are malformed.
    """
    parameters = parameters or Parameters()
    golds, tests = list(golds), list(tests)
    end = max(len(golds), len(tests))
    while end and not any(map(_TEXT.search, golds[end - 1 : end] + tests[end - 1 : end])):
        end -= 1
    if len(golds[:end]) != len(tests[:end]):
        raise UserError(
            f"{gold_name} has {len(golds)} lines and {test_name} has {len(tests)}; "
            "line n of one must be the parse of line n of the other"
        )
    pairs = enumerate(zip(golds[:end], tests[:end]), start=1)
    scores = (score_sentence(gold, test, parameters, number, gold_name) for number, (gold, test) in pairs)
    return Parseval(tuple(scores), parameters)


def parse_scores(hypotheses, references):
    """Return the `Score`s of parses, the F1 of all sentences last; see `Parseval.scores`."""
    return parseval(references, hypotheses).scores()


def f1_of_counts(matched, gold, test):
    """Return the F1, in per cent, of numbers of brackets or of NumPy arrays of them; 0 where there are none."""
    return 200 * matched / np.maximum(gold + test, 1)


def trees_as_lines(lines, name, sentences=None):
    """Return the lines of a file of brackets, one sentence each, for `parseval`.

    Where each line is balanced by itself it is a sentence, also a blank one. Otherwise the trees are over several
    lines, as in the Penn Treebank, and each becomes one line.

    Args:
        lines: The lines of the file.
        name: What an error calls the file.
        sentences: Number of sentences that there should be, if known: a test file with as many lines has one in each,
            so that a parse whose brackets are not balanced is an error sentence and spoils no other.

    Raises:
        UserError: Trees over several lines are malformed; see `read_trees`.
    """
    lines = list(lines)
    if len(lines) == sentences or all(map(_is_balanced, lines)):
        return lines
    return [str(tree) for tree in read_trees(lines, name)]


def _harmonic_mean(recall, precision):
    return 2 * recall * precision / (recall + precision) if recall + precision else 0.0


def _is_balanced(line):
    """Whether each bracket of a line is closed in it."""
    depth = 0
    for bracket in re.findall("[()]", line):
        depth += 1 if bracket == "(" else -1
        if depth < 0:
            return False
    return depth == 0


def _compare_f1(metric, outputs, others, references):
    counts = np.array(
        [
            [[getattr(one, name) for name in COUNTS] for one in parseval(references, texts).sentences]
            for texts in (outputs, others)
        ]
    )
    return by_resampling(metric, counts, lambda counts: f1_of_counts(*counts.sum(axis=1).T), RULES)


COMPARISONS[F1_OF_ALL] = _compare_f1
