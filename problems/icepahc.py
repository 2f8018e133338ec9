"""IcePaHC, the Icelandic Parsed Historical Corpus: ten centuries, CC BY 4.0 (github.com/antonkarl/icecorpus)."""

import functools

from keras_transformer.parsing import TreebankProblem
from keras_transformer.registry import register_problem
from keras_transformer.tasks import require


@register_problem("parsing_icepahc")
class ParsingIcePaHC(TreebankProblem):
    """IcePaHC's trees; of each text the last tenth is validation and test: --raw_dir holds its .psd files."""

    def __post_init__(self):
        super().__post_init__()
        require(self.raw_dir, f"{self.name} needs the folder of IcePaHC's .psd files: --raw_dir=FOLDER")

    @functools.cached_property
    def files(self):
        from keras_transformer.data.treebanks import icepahc_files

        return {"all": icepahc_files(self.raw_dir)}

    @staticmethod
    def normalized(tree):
        from keras_transformer.trees.normalize import icelandic

        return icelandic(tree)

    def trees(self, split):
        from keras_transformer.data.treebanks import part_of_text, read_treebank

        for path in self.files["all"]:
            trees = [tree for tree in map(self.normalized, read_treebank([path])) if tree]
            yield from part_of_text(trees, split)
