"""IcePaHC, the Icelandic Parsed Historical Corpus, with texts from ten centuries.

The license is CC BY 4.0 (github.com/antonkarl/icecorpus).
"""

from keras_transformer.config.registry import register_problem
from keras_transformer.parsing.normalize import icelandic
from keras_transformer.parsing.problem import TreebankProblem
from keras_transformer.parsing.treebanks import icepahc_files, part_of_text, read_treebank


@register_problem("parsing_icepahc")
class ParsingIcePaHC(TreebankProblem):
    """IcePaHC's trees, with the last tenth of each text for validation and test; .psd files in --raw_dir."""

    folder = "the folder of IcePaHC's .psd files"
    normalized = staticmethod(icelandic)

    def corpus_files(self):
        return icepahc_files(self.raw_dir)

    def trees(self, split):
        for path in self.corpus_files():
            trees = [tree for tree in map(self.normalized, read_treebank([path])) if tree]
            yield from part_of_text(trees, split)
