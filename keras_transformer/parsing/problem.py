"""Base classes of parsing problems, which map sentences to constituency trees (§6.3)."""

import dataclasses
import functools
from typing import ClassVar

from keras_transformer.data.sampling import sample_texts
from keras_transformer.metrics.bleu import Score, exact_match
from keras_transformer.parsing.linearize import linearize
from keras_transformer.parsing.normalize import penn
from keras_transformer.parsing.tree import unescaped
from keras_transformer.parsing.treebanks import read_treebank
from keras_transformer.tasks.problem import Problem, setting
from keras_transformer.utils.errors import require

GOLDEN_RATIO = (5**0.5 - 1) / 2


@dataclasses.dataclass(kw_only=True)
class ParsingProblem(Problem):
    """Problem whose sources are sentences and whose targets are bracketed trees. Subclasses provide the trees.

    Spaces separate the words of a sentence. As in §6.3, both sides share one vocabulary. Each bracket and each tag is
    one token of the vocabulary, and all other tokens are subwords.
    """

    vocab_size: int = setting(
        16_000, "maximum number of pieces in the vocabulary (fewer for a small treebank)", low=300
    )
    tags: bool = setting(True, "whether trees have part-of-speech tags (false: all tags are XX)")
    train_share: float = setting(1.0, "fraction of the training trees to use, evenly spread", low=0.001, high=1)

    def trees(self, split):
        """Yield the normalized `Tree`s of a split."""
        raise NotImplementedError

    def learned_trees(self, split):
        """Yield the trees of a split, but only the fraction `train_share` of the training trees.

        A larger fraction includes all trees of each smaller fraction.
        """
        for number, tree in enumerate(self.trees(split)):
            # Fractional parts of multiples of the golden ratio are spread more evenly than random numbers.
            if split != "train" or self.train_share == 1 or number * GOLDEN_RATIO % 1 < self.train_share:
                yield tree

    def pairs(self, split):
        return ((sentence_of(tree), str(tree)) for tree in self.learned_trees(split))

    def make_tokenizer(self):
        from keras_transformer.parsing.tokenizer import TreeTokenizer  # imports Keras

        symbols = set()

        def sentences():  # also collects the symbols, because reading a large treebank twice is slow
            count = 0
            for tree in self.learned_trees("train"):
                symbols.update(linearize(tree, self.tags))
                count += 1
                yield sentence_of(tree)
            self.expected_pairs = {"train": count}

        return TreeTokenizer.train(sample_texts(sentences()), symbols, self.vocab_size)

    def score(self, hypotheses, references):
        from keras_transformer.parsing.parseval import parseval

        return parseval(references, hypotheses).scores()

    def all_scores(self, hypotheses, references):
        from keras_transformer.parsing.parseval import parseval

        result = parseval(references, hypotheses)
        errors, evalb, f1 = result.scores()
        figures = {"recall": result.recall, "precision": result.precision, "tagging accuracy": result.tagging_accuracy}
        scores = [Score(name, value, evalb.signature) for name, value in figures.items()]
        return [*scores, exact_match(hypotheses, references), errors, evalb, f1]

    def table(self, hypotheses, references):
        from keras_transformer.parsing.parseval import parseval

        return parseval(references, hypotheses).table()


class TreebankProblem(ParsingProblem):
    """Parsing problem that reads the files of a treebank from `raw_dir`.

    Attributes:
        folder: Description of `raw_dir` for error messages.
        normalized: Function that normalizes a tree from `files` for training. It returns None if no words remain.
    """

    folder: ClassVar[str]
    normalized = staticmethod(penn)

    def __post_init__(self):
        super().__post_init__()
        require(self.raw_dir, f"{self.name} requires {self.folder}. Set it with --raw_dir=FOLDER.")

    @functools.cached_property
    def files(self):
        """Files of each split, {split: paths}."""
        raise NotImplementedError

    def corpus_files(self):
        return [path for paths in self.files.values() for path in paths]

    def trees(self, split):
        return filter(None, map(self.normalized, read_treebank(self.files[split])))


def sentence_of(tree):
    """Return the unescaped words of a tree, separated by spaces."""
    return " ".join(map(unescaped, tree.words()))
