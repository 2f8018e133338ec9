"""GUM, the Georgetown University Multilayer corpus, with English texts of many genres.

The license is CC BY 4.0 (github.com/amir-zeldes/gum).
"""

import dataclasses
import functools
from pathlib import Path

from keras_transformer.config.registry import register_problem
from keras_transformer.parsing.problem import TreebankProblem
from keras_transformer.parsing.semisupervised import SemisupervisedTreebank
from keras_transformer.parsing.treebanks import gum_files, wsj_files


@register_problem("parsing_gum")
class ParsingGum(TreebankProblem):
    """GUM's constituency trees with the official splits; .ptb files and splits.md in --raw_dir."""

    folder = "the folder of GUM's .ptb files and splits.md"

    @functools.cached_property
    def files(self):
        return gum_files(self.raw_dir)

    def corpus_files(self):
        return [*super().corpus_files(), Path(self.raw_dir) / "splits.md"]


@register_problem("parsing_english")
class ParsingEnglish(TreebankProblem):
    """Combination of WSJ (or NLTK's sample) and GUM; --raw_dir must contain WSJ's .mrg files and a folder gum."""

    folder = "a folder that contains WSJ's .mrg files and a folder gum"

    @functools.cached_property
    def files(self):
        gum, wsj = gum_files(Path(self.raw_dir) / "gum"), wsj_files(self.raw_dir)
        return {split: wsj[split] + gum[split] for split in self.splits}

    def corpus_files(self):
        return [*super().corpus_files(), Path(self.raw_dir) / "gum" / "splits.md"]


@register_problem("parsing_english_semisupervised")
@dataclasses.dataclass(kw_only=True)
class ParsingEnglishSemisupervised(SemisupervisedTreebank, ParsingEnglish):
    """WSJ, GUM and automatically parsed trees (as in §6.3); bracketed trees in --set problem.auto_dir=FOLDER."""
