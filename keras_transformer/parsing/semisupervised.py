"""Settings of the problems that also train on automatically parsed trees (§6.3)."""

import dataclasses
import functools
import math
from fractions import Fraction
from pathlib import Path

from keras_transformer.parsing.treebanks import read_treebank
from keras_transformer.tasks.problem import setting
from keras_transformer.utils.errors import require


@dataclasses.dataclass(kw_only=True)
class SemisupervisedTreebank:
    """Adds automatically parsed trees to the training split of a `TreebankProblem`.

    Combine this class with the problem of a treebank:

        @register_problem("my_treebank_semisupervised")
        @dataclasses.dataclass(kw_only=True)
        class MySemisupervisedTreebank(SemisupervisedTreebank, MyTreebank):
            ...
    """

    auto_dir: str | None = setting(
        None, "folder of automatically parsed trees (all its files except hidden ones)", is_path=True
    )
    gold_share: float = setting(
        0.0, "minimum share of gold trees among the training trees, reached by repeating gold trees", low=0, high=0.9
    )

    def __post_init__(self):
        super().__post_init__()
        require(
            self.auto_dir,
            f"{self.name} needs a folder of automatically parsed trees, for example the output of "
            "`python -m keras_transformer.translate`. Add --set problem.auto_dir=FOLDER.",
        )

    @functools.cached_property
    def auto_files(self):
        """The files with automatically parsed trees."""
        folder = Path(self.auto_dir)
        require(folder.is_dir(), f"problem.auto_dir must be a folder, got {folder}")
        files = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
        require(files, f"{folder} (problem.auto_dir) contains no files. Use a folder of automatically parsed trees.")
        return files

    def corpus_files(self):
        return super().corpus_files() + self.auto_files

    @functools.cached_property
    def gold_copies(self):
        """Number of copies of each gold tree in the training trees, at least 1."""
        if not self.gold_share:
            return 1
        gold, auto = sum(1 for _ in super().trees("train")), sum(1 for _ in self.auto_trees())
        require(gold, f"{self.raw_dir}: the training files must contain at least one tree")
        share = Fraction(str(self.gold_share))  # exact, because a rounding error could add a copy
        # Smallest number of copies c with c · gold / (c · gold + auto) ≥ gold_share.
        return max(1, math.ceil(share / (1 - share) * auto / gold))

    def auto_trees(self):
        """Yield the automatically parsed trees."""
        return filter(None, map(self.normalized, read_treebank(self.auto_files)))

    def trees(self, split):
        yield from super().trees(split)
        if split == "train":
            for _ in range(self.gold_copies - 1):
                yield from super().trees(split)
            yield from self.auto_trees()
