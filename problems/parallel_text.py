"""A user's own parallel text."""

import dataclasses
import functools
import hashlib
import heapq
from pathlib import Path

from keras_transformer.config.registry import register_problem
from keras_transformer.data.corpus import existing_file, read_pairs, remedy
from keras_transformer.tasks.problem import require, setting
from keras_transformer.tasks.translation import TranslationProblem
from keras_transformer.utils.errors import UserError

HELD_OUT_PAIRS, HELD_OUT_SHARE = 1000, 0.05


@register_problem("parallel_text")
@dataclasses.dataclass(kw_only=True)
class ParallelText(TranslationProblem):
    """Your own files train.SRC and train.TGT in --raw_dir, one sentence a line; validation.* and test.* if there are.

    Files may be gzip (`train.en.gz`). Without validation files up to 1,000 training pairs, at most 5%, are held
    out, chosen by a hash of the source so that repeated sentences fall on one side.
    """

    source: str = setting("en", "ending of the source files")
    target: str = setting("de", "ending of the target files")

    def __post_init__(self):
        super().__post_init__()
        require(self.raw_dir, f"{self.name} needs the folder of your files: --raw_dir=FOLDER")
        require(self.source != self.target, f"{self.name}: source and target are both {self.source!r}")
        self.splits = ("train", "validation", "test") if self.has("test") else ("train", "validation")

    def path(self, split, language):
        """Returns the file of one side of a split, or None."""
        return existing_file(self.raw_dir, f"{split}.{language}")

    def both_paths(self, split):
        """Returns the two files of a split."""
        paths = [self.path(split, language) for language in (self.source, self.target)]
        for path, language in zip(paths, (self.source, self.target)):
            if path is None:
                otherwise = (
                    f", {what_is_in(self.raw_dir)}; name the languages with --set problem.source=SRC "
                    "--set problem.target=TGT"
                )
                hint = remedy(self.raw_dir, f"{split}.{language}", otherwise)
                raise UserError(f"{self.raw_dir}/{split}.{language} does not exist (nor .gz){hint}")
        return paths

    def corpus_files(self):
        return [path for split in self.splits if self.has(split) for path in self.both_paths(split)]

    def has(self, split):
        """Return whether the split has a file, or one with a similar name, which `both_paths` reports.

        Without validation files, training pairs are held out.
        """
        languages = (self.source, self.target)
        return any(self.path(split, each) or remedy(self.raw_dir, f"{split}.{each}") for each in languages)

    def pairs(self, split):
        if self.has("validation") or split == "test":
            return read_pairs(*self.both_paths(split))
        return self._parted(read_pairs(*self.both_paths("train")), held_out=split == "validation")

    def further_pairs(self):
        pairs = super().further_pairs()
        return pairs if self.has("validation") else self._parted(pairs, held_out=False)

    def _parted(self, pairs, held_out):
        return ((source, target) for source, target in pairs if (_hash(source) < self.threshold) == held_out)

    @functools.cached_property
    def threshold(self):
        """Sources whose hash lies below this are held out."""
        count = sum(1 for _ in read_pairs(*self.both_paths("train")))
        held_out = min(HELD_OUT_PAIRS, int(count * HELD_OUT_SHARE))
        hashes = (_hash(source) for source, _ in read_pairs(*self.both_paths("train")))
        lowest = heapq.nsmallest(held_out + 1, hashes)
        require(
            lowest[0] < lowest[-1],
            f"{self.raw_dir}: {count} pairs are too few, or too alike, to hold some out; add "
            f"validation.{self.source} and validation.{self.target}",
        )
        return lowest[-1]


def _hash(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def what_is_in(folder):
    """Returns what a message tells of a folder."""
    if not Path(folder).is_dir():
        return "nor does the folder"
    names = sorted(path.name for path in Path(folder).iterdir() if path.is_file())
    several = f"{', '.join(names[:6])}{', …' if len(names) > 6 else ''}"
    return f"the folder holds {several if names else 'no files'}"
