"""Parsing of sentences from the embedded grammar in `toy_grammar.py`, which a model learns in minutes."""

import dataclasses
import importlib

from keras_transformer.config.registry import problems, register_problem
from keras_transformer.parsing.normalize import penn
from keras_transformer.parsing.problem import ParsingProblem
from keras_transformer.parsing.tree import Tree
from keras_transformer.tasks.problem import setting


@register_problem("toy_parsing")
@dataclasses.dataclass(kw_only=True)
class ToyParsing(ParsingProblem):
    """Parse trees of English sentences from an embedded grammar, without a download."""

    vocab_size: int = setting(800, "maximum number of pieces in the vocabulary", low=100)
    train_pairs: int = setting(20_000, "number of distinct training sentences", low=1)

    @property
    def grammar(self):
        """The module with the grammar, which the problem `toy_ende` also uses."""
        return importlib.import_module(problems.get("toy_ende").__module__)

    def corpus_files(self):
        return [*super().corpus_files(), self.grammar.__file__]

    def trees(self, split):
        def tree(node):
            label, *children = node
            return (
                Tree(label, (), children[0])
                if isinstance(children[0], str)
                else Tree(label, tuple(map(tree, children)))
            )

        count = {"train": self.train_pairs, "validation": 500, "test": 1000}[split]
        return (penn(tree(example.tree)) for example in self.grammar.examples(split, count))
