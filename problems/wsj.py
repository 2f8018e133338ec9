"""The Wall Street Journal of the Penn Treebank: §6.3's corpus, which the LDC distributes (LDC99T42)."""

import dataclasses
import functools
import math
from fractions import Fraction
from pathlib import Path

from keras_transformer.config.registry import register_problem
from keras_transformer.parsing.problem import TreebankProblem
from keras_transformer.tasks.problem import require, setting


@register_problem("parsing_wsj")
@dataclasses.dataclass(kw_only=True)
class ParsingWsj(TreebankProblem):
    """Penn Treebank WSJ, sections 02–21 / 22 / 23, or NLTK's sample of it: --raw_dir holds the .mrg files (§6.3)."""

    folder = "the folder of the files wsj_SSNN.mrg"

    @functools.cached_property
    def files(self):
        from keras_transformer.parsing.treebanks import wsj_files

        return wsj_files(self.raw_dir)


@register_problem("parsing_wsj_semisupervised")
@dataclasses.dataclass(kw_only=True)
class ParsingWsjSemisupervised(ParsingWsj):
    """WSJ and automatically parsed trees: --set problem.auto_dir=FOLDER of files with trees in brackets (§6.3)."""

    vocab_size: int = setting(32_000, "most pieces of the vocabulary (§6.3)", low=300)
    auto_dir: str | None = setting(
        None, "folder of the automatically parsed trees, files of any name but hidden ones", is_path=True
    )
    gold_share: float = setting(
        0.0, "least share of training trees that are WSJ's, which are repeated as often as that takes", low=0, high=0.9
    )

    def __post_init__(self):
        super().__post_init__()
        require(
            self.auto_dir,
            f"{self.name} needs automatically parsed trees: --set problem.auto_dir=FOLDER, with what "
            "`python -m keras_transformer.translate` writes, for example",
        )
        self.auto_dir = str(Path(self.auto_dir).resolve())

    @functools.cached_property
    def auto_files(self):
        """The files of automatically parsed trees."""
        folder = Path(self.auto_dir)
        require(folder.is_dir(), f"there is no folder {folder}, problem.auto_dir")
        files = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
        require(files, f"{folder} (problem.auto_dir) holds no file")
        return files

    def corpus_files(self):
        return super().corpus_files() + self.auto_files

    @functools.cached_property
    def gold_copies(self):
        """How often WSJ's trees are among those for training: 1 or more."""
        if not self.gold_share:
            return 1
        gold, auto = sum(1 for _ in super().trees("train")), sum(1 for _ in self.auto_trees())
        require(gold, f"{self.raw_dir}: the training sections hold no tree")
        share = Fraction(str(self.gold_share))  # exact: a rounding error could be a copy more
        # The least number of copies c with c · gold / (c · gold + auto) ≥ gold_share.
        return max(1, math.ceil(share / (1 - share) * auto / gold))

    def auto_trees(self):
        """Yields the automatically parsed trees."""
        from keras_transformer.parsing.treebanks import read_treebank

        return filter(None, map(self.normalized, read_treebank(self.auto_files)))

    def trees(self, split):
        yield from super().trees(split)
        if split == "train":
            for _ in range(self.gold_copies - 1):
                yield from super().trees(split)
            yield from self.auto_trees()
