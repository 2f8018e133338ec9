"""The Wall Street Journal part of the Penn Treebank, which the paper uses (§6.3) and the LDC distributes (LDC99T42)."""

import dataclasses
import functools

from keras_transformer.config.registry import register_problem
from keras_transformer.parsing.problem import TreebankProblem
from keras_transformer.parsing.semisupervised import SemisupervisedTreebank
from keras_transformer.parsing.treebanks import wsj_files
from keras_transformer.tasks.problem import setting


@register_problem("parsing_wsj")
@dataclasses.dataclass(kw_only=True)
class ParsingWsj(TreebankProblem):
    """Penn Treebank WSJ (§6.3), sections 02–21 / 22 / 23, or NLTK's sample; .mrg files in --raw_dir."""

    folder = "the folder of the files wsj_SSNN.mrg"

    @functools.cached_property
    def files(self):
        return wsj_files(self.raw_dir)


@register_problem("parsing_wsj_semisupervised")
@dataclasses.dataclass(kw_only=True)
class ParsingWsjSemisupervised(SemisupervisedTreebank, ParsingWsj):
    """WSJ and automatically parsed trees (§6.3); bracketed trees in --set problem.auto_dir=FOLDER."""

    vocab_size: int = setting(32_000, "maximum number of pieces in the vocabulary (§6.3)", low=300)
