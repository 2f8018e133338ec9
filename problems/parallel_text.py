"""Parallel text in your own files."""

import dataclasses
import functools
import heapq
import itertools

from keras_transformer.config.registry import register_problem
from keras_transformer.data.pair_sources import find_source, hash_text, parse_sources
from keras_transformer.tasks.problem import require, setting
from keras_transformer.tasks.translation import TranslationProblem
from keras_transformer.utils.errors import UserError

HELD_OUT_PAIRS, HELD_OUT_SHARE = 1000, 0.05
FILES = "files separated by commas, each optionally with a weight, such as a.tsv,b.tmx:3,c for c.SRC and c.TGT"


@register_problem("parallel_text")
@dataclasses.dataclass(kw_only=True)
class ParallelText(TranslationProblem):
    """Your own files train.SRC and train.TGT in --raw_dir, or train.tsv, train.jsonl or train.tmx.

    The optional validation and test files have the same formats. All may be compressed (.gz, .xz or .zst). Without
    validation files, the problem holds out up to 1,000 training pairs, at most 5%. A hash of the source selects them,
    so that all copies of a sentence are in the same split.
    """

    source: str = setting("en", "source language: ending of the source files, key in JSON, code in TMX")
    target: str = setting("de", "target language: ending of the target files, key in JSON, code in TMX")
    train: str | None = setting(None, f"training {FILES} (default train.*)")
    validation: str | None = setting(None, f"validation {FILES} (default validation.*)")
    test: str | None = setting(None, f"test {FILES} (default test.*)")

    def __post_init__(self):
        super().__post_init__()
        require(self.raw_dir, f"{self.name} needs the folder of your files: --raw_dir=FOLDER")
        require(self.source != self.target, f"{self.name}: source and target must differ, got {self.source!r} twice")
        self.splits = ("train", "validation", "test") if self._has("test") else ("train", "validation")

    def sources(self, split):
        """Return the list of `PairSource` of a split, which is empty if there are no files.

        Raises:
            UserError: A file is missing, or the folder contains only one side.
        """
        languages = (self.source, self.target)
        if (named := getattr(self, split)) is not None:
            sources = parse_sources(named, self.raw_dir, languages)
            require(
                not (self.dropped_duplicates and any(source.weight > 1 for source in sources)),
                f"{self.name}: {self.dropped_duplicates} cannot be combined with a weight above 1, because it would "
                "drop the copies; unset one of them",
            )
            return sources
        found = find_source(self.raw_dir, split, languages, required=split == "train")
        return [found] if found else []

    def _has(self, split):
        try:
            return bool(self.sources(split))
        except UserError:  # reading the files will raise the error again
            return True

    def corpus_files(self):
        return [path for split in self.splits for source in self.sources(split) for path in source.paths]

    def pairs(self, split):
        if split != "train" and (sources := self.sources(split)):
            return itertools.chain.from_iterable(source.pairs() for source in sources)
        if self._has("validation"):
            return self._train_pairs()
        if split == "train":
            return self._part(self._train_pairs(), held_out=False)
        return self._part(self._train_pairs(weighted=False), held_out=True)

    def further_pairs(self):
        pairs = super().further_pairs()
        return pairs if self._has("validation") else self._part(pairs, held_out=False)

    def _train_pairs(self, weighted=True):
        for source in self.sources("train"):
            yield from (source if weighted else dataclasses.replace(source, weight=1.0)).pairs()

    def _part(self, pairs, held_out):
        """Yield the pairs that are held out for validation, or the others."""
        return ((source, target) for source, target in pairs if (hash_text(source) < self.threshold) == held_out)

    @functools.cached_property
    def threshold(self):
        """Sources with a hash below this number are held out for validation."""
        count = sum(1 for _ in self._train_pairs(weighted=False))
        held_out = min(HELD_OUT_PAIRS, int(count * HELD_OUT_SHARE))
        hashes = (hash_text(source) for source, _ in self._train_pairs(weighted=False))
        lowest = heapq.nsmallest(held_out + 1, hashes)
        require(
            lowest[0] < lowest[-1],
            f"{self.raw_dir}: {count} pairs are too few or too similar to hold out pairs for validation; add "
            f"validation.{self.source} and validation.{self.target}",
        )
        return lowest[-1]
