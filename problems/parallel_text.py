"""Problems for parallel text in your own files, in one or several directions."""

import bisect
import dataclasses
import functools
import heapq
import itertools
import logging
import re
from pathlib import Path
from typing import ClassVar

from keras_transformer.config.registry import register_problem
from keras_transformer.data.compression import without_suffix
from keras_transformer.data.corpus_files import existing_file
from keras_transformer.data.filters import TaggedPairFilter
from keras_transformer.data.language_tags import SEVERAL, language_tag
from keras_transformer.data.pair_sources import files_in, find_source, hash_text, parse_sources, repeat_pairs
from keras_transformer.tasks.problem import setting
from keras_transformer.tasks.translation import TranslationProblem
from keras_transformer.utils.errors import UserError, require, unknown
from keras_transformer.utils.logs import log_once

logger = logging.getLogger("keras_transformer.problems")

HELD_OUT_PAIRS, HELD_OUT_SHARE = 1000, 0.05
FILES = (
    "files separated by commas, each optionally with a weight, such as a.tsv,b.tmx:3,c for c.SRC and c.TGT, or "
    "dataset:NAME[:CONFIG[:SPLIT]]"
)
LISTED_FILES = f"{FILES}, each optionally after its languages, such as en-de:a.tsv"


@register_problem("parallel_text")
@dataclasses.dataclass(kw_only=True)
class ParallelText(TranslationProblem):
    """Your own files in --raw_dir: train.SRC and train.TGT, or train.tsv, train.jsonl or train.tmx.

    The optional validation and test files have the same formats. All files may be compressed (.gz, .xz or .zst).
    Without validation files, the problem holds out 5% of the training pairs, but at most 1,000. A hash of the source
    selects the pairs, so all copies of a sentence are in the same split. The problem does not hold out pairs with an
    empty side.
    """

    source: str = setting("en", "source language: ending of the source files, key in JSON, code in TMX")
    target: str = setting("de", "target language: ending of the target files, key in JSON, code in TMX")
    train: str | None = setting(None, f"training {FILES} (default train.*)")
    validation: str | None = setting(None, f"validation {FILES} (default validation.*)")
    test: str | None = setting(None, f"test {FILES} (default test.*)")

    def __post_init__(self):
        super().__post_init__()
        require(self.raw_dir, f"{self.name} needs the folder of your files. Add --raw_dir=FOLDER.")
        require(self.source != self.target, f"{self.name}: source and target must differ, got {self.source!r} twice")

    @property
    def splits(self):  # type: ignore[override]
        return ("train", "validation", "test") if self._has("test") else ("train", "validation")

    def sources(self, split):
        """Return the list of `PairSource`s of a split, which is empty if there are no files.

        Raises:
            UserError: A file is missing, or the folder contains only one side.
        """
        languages = (self.source, self.target)
        if (named := getattr(self, split)) is not None:
            return self._check_copies(parse_sources(named, self.raw_dir, languages, split))
        found = find_source(self.raw_dir, split, languages, required=split == "train")
        return [found] if found else []

    def _check_copies(self, sources):
        """Return `sources`. Raise a `UserError` if a filter would drop the copies that a weight above 1 creates."""
        require(
            not (self.dropped_duplicates and any(source.weight > 1 for source in sources)),
            f"{self.name}: {self.dropped_duplicates} cannot be combined with a weight above 1, because "
            f"{self.dropped_duplicates} would drop the copies; unset one of them",
        )
        return sources

    def _has(self, split):
        try:
            return bool(self.sources(split))
        except UserError:  # reading the files raises the same error later
            return True

    def holds_out(self, split):
        """Return whether a split consists of held-out training pairs."""
        return split == "validation" and not self._has("validation")

    def corpus_files(self):
        return [path for split in self.splits for source in self.sources(split) for path in source.paths]

    def split_files(self, split):
        sources = self.sources("train" if self.holds_out(split) else split)
        return [path for source in sources for path in source.paths]

    def pairs(self, split):
        if self.holds_out(split):
            return self._part(self._read("train", weighted=False), held_out=True)
        pairs = self._read(split)
        return self._part(pairs, held_out=False) if split == "train" and self.holds_out("validation") else pairs

    def further_pairs(self):
        pairs = super().further_pairs()
        return self._part(pairs, held_out=False) if self.holds_out("validation") else pairs

    def _read(self, split, weighted=True):
        for source in self.sources(split):
            yield from (source if weighted else dataclasses.replace(source, weight=1.0)).pairs()

    def _part(self, pairs, held_out):
        """Yield the pairs that are held out for validation, or the remaining pairs if `held_out` is false."""
        return (pair for pair in pairs if self._is_held_out(pair) == held_out)

    def _is_held_out(self, pair):
        return _is_complete(pair) and hash_text(self._key(pair)) in self.held_out_hashes

    def _key(self, pair):
        """Return the text whose hash decides whether a pair is held out."""
        return pair[0]

    @functools.cached_property
    def held_out_hashes(self):
        """Set of hashes. Complete pairs with one of these hashes are held out for validation."""
        count, pairs = itertools.count(), filter(_is_complete, self._read("train", weighted=False))
        hashes = (hash_text(self._key(pair)) for pair, _ in zip(pairs, count))
        lowest = heapq.nsmallest(HELD_OUT_PAIRS + 1, hashes)
        total = next(count)
        threshold = lowest[min(HELD_OUT_PAIRS, int(total * HELD_OUT_SHARE))] if lowest else 0
        held_out = bisect.bisect_left(lowest, threshold)
        names = f"validation.{self.source} and validation.{self.target}"
        require(
            held_out,
            f"{self.raw_dir}: {total} pairs are too few or too similar to hold out pairs for validation; add {names}",
        )
        message = f"  no {names} in {self.raw_dir}; holding out {held_out:,} of {total:,} training pairs"
        log_once(logger, logging.INFO, message)
        return frozenset(lowest[:held_out])


def _is_complete(pair):
    return all(map(str.strip, pair))


SPLIT_NAME = re.compile(r"(?:train|validation|test)\.(\w+)(?:-(\w+)\.)?")
"""Pattern for the beginning of a file name in a multilingual corpus. Its groups are the languages in the name."""

LISTED = re.compile(r"(?:(\w+)-(\w+):(?!\d*[.]?\d+$))?(.+)", re.DOTALL)
"""Pattern for an entry of a list of files, such as `en-de:a.tsv:3`. Its groups are the two languages and the rest. The
entry `talks-new:3` has no languages, because a number after the colon is a weight."""


def parse_entries(text):
    """Return the entries of a list of files as pairs (languages or None, rest of the entry)."""
    entries = map(LISTED.fullmatch, filter(None, map(str.strip, text.split(","))))
    return [(entry.group(1, 2) if entry[1] else None, entry[3]) for entry in entries]


def _is_tsv(source):
    return without_suffix(source.paths[0].name).lower().endswith(".tsv")


@dataclasses.dataclass(kw_only=True)
class Direction(ParallelText):
    """One direction of `MultilingualText`.

    If no files are listed, the problem reads each split from the first of the following files that exist. The names in
    the list are those of the training files for the direction from English to German.

    - `train.en-de.en` and `train.en-de.de`, or `train.en-de` with `.tsv`, `.jsonl` or `.tmx`,
    - the same names with `de-en`, in which case the problem swaps the two sides,
    - `train.en` and `train.de`, `train.jsonl` or `train.tmx`, which may contain additional languages.
    """

    name: ClassVar[str] = "multilingual_text"

    def sources(self, split):
        languages = self.source, self.target
        if (listed := getattr(self, split)) is not None:
            return self._check_copies(self._listed_sources(listed, split))
        for pair in (languages, languages[::-1]):
            if found := find_source(self.raw_dir, f"{split}.{'-'.join(pair)}", pair, by_settings=False):
                return [dataclasses.replace(found, swapped=pair != languages)]
        sides = [existing_file(self.raw_dir, f"{split}.{language}") for language in languages]
        found = None
        if all(sides) or not any(sides):
            found = find_source(self.raw_dir, split, languages, by_settings=False)
        if found and _is_tsv(found):
            raise UserError(
                f"{found.paths[0]}: the name must contain the languages of the two columns. Rename it to "
                f"{split}.{self.source}-{self.target}.tsv, for example."
            )
        if found is None and split == "train":
            raise self._no_files()
        return [found] if found else []

    def _listed_sources(self, text, split):
        """Return the `PairSource`s of the entries that name this direction, its reverse or no languages."""
        own, sources = (self.source, self.target), []
        for languages, entry in parse_entries(text):
            if languages and {*languages} != {*own}:
                continue
            found = parse_sources(entry, self.raw_dir, languages or own, split, by_settings=False)
            columns = [source for source in found if not source.dataset and _is_tsv(source)]
            if columns and not languages:
                raise UserError(
                    f"problem.{split} must name the languages of the two columns of {entry}. Write "
                    f"{self.source}-{self.target}:{entry}, for example."
                )
            sources += [dataclasses.replace(source, swapped=languages not in (None, own)) for source in found]
        require(
            sources or split != "train",
            f"problem.train must contain files for {self.source}-{self.target}, got {text!r}. Add an entry such as "
            f"{self.source}-{self.target}:FILE.",
        )
        return sources

    def _no_files(self):
        """Return the `UserError` for a direction without training files."""
        folder = Path(self.raw_dir)
        names = [SPLIT_NAME.match(path.name) for path in folder.iterdir()] if folder.is_dir() else []
        known = {language for name in filter(None, names) for language in name.groups() if language}
        for language in (self.source, self.target):
            if known and language not in known:
                return unknown("language", language, known)
        one, two = self.source, self.target
        return UserError(
            f"{folder} has no training files for {one}-{two}, such as train.{one}-{two}.tsv, or train.{one} and "
            f"train.{two}; {files_in(folder)}"
        )

    def _key(self, pair):
        """Return the text of the alphabetically first language, so that both directions hold out the same pairs."""
        return min(zip((self.source, self.target), pair))[1]


@register_problem("multilingual_text")
@dataclasses.dataclass(kw_only=True)
class MultilingualText(TranslationProblem):
    """Several directions in one model, between the languages of your files train.en, train.de, train.fr, ….

    Each source begins with the tag of its target language, such as `<2de>` (Johnson et al. 2017). Each tag is a single
    piece of the vocabulary.
    """

    reverse_class = None  # type: ignore[assignment]  `directions` can list both directions
    extra_train: ClassVar[None] = None  # type: ignore[misc]
    source_script: ClassVar[None] = None  # type: ignore[misc]
    target_script: ClassVar[None] = None  # type: ignore[misc]

    directions: str | None = setting(None, "directions separated by commas, such as en-de,en-fr,de-en")
    train: str | None = setting(None, f"training {LISTED_FILES} (default train.*)")
    validation: str | None = setting(None, f"validation {LISTED_FILES} (default validation.*)")
    test: str | None = setting(None, f"test {LISTED_FILES} (default test.*)")
    temperature: float = setting(
        1.0, "temperature for sampling directions (1: in proportion to their numbers of pairs, 100: almost equally)",
        low=1, high=100,
    )  # fmt: skip

    def __post_init__(self):
        super().__post_init__()
        require(self.raw_dir, f"{self.name} needs the folder of your files. Add --raw_dir=FOLDER.")
        require(
            self.directions, f"{self.name} needs directions. Add, for example, --set problem.directions=en-de,de-en."
        )
        require(
            self.temperature == 1 or not self.dropped_duplicates,
            f"{self.name}: {self.dropped_duplicates} cannot be combined with temperature={self.temperature:g}, "
            f"because {self.dropped_duplicates} would drop the copies; unset one of them",
        )
        self.parts = {name: self._part(name) for name in re.split(r"\s*,\s*", self.directions.strip())}

    @property
    def splits(self):  # type: ignore[override]
        known = {split for part in self.parts.values() for split in part.splits}
        return tuple(split for split in ("train", "validation", "test") if split in known)

    def _part(self, name):
        languages = re.fullmatch(r"(\w+)-(\w+)", name)
        require(
            languages and languages[1] != languages[2],
            f"each direction in problem.directions must name two different languages, got {name!r}. Write en-de, "
            "for example.",
        )
        return Direction(
            data_dir=self.data_dir, raw_dir=self.raw_dir, source=languages[1], target=languages[2],
            bleu_tokenizer=self.bleu_tokenizer, train=self.train, validation=self.validation, test=self.test,
            drop_duplicates=self.drop_duplicates, drop_source_duplicates=self.drop_source_duplicates,
        )  # fmt: skip

    @property
    def input_language(self):
        return self._common("source")

    @property
    def output_language(self):
        return self._common("target")

    def _common(self, side):
        languages = {getattr(part, side) for part in self.parts.values()}
        return languages.pop() if len(languages) == 1 else SEVERAL

    @property
    def tags(self):
        """The tags of the target languages."""
        return tuple(dict.fromkeys(language_tag(part.target) for part in self.parts.values()))

    @property
    def filters(self):
        return {split: TaggedPairFilter(**vars(rules)) for split, rules in super().filters.items()}

    def corpus_files(self):
        known = [*self.parts, *("-".join(name.split("-")[::-1]) for name in self.parts)]
        for split in ("train", "validation", "test"):
            for languages, _ in parse_entries(getattr(self, split) or ""):
                if languages and (name := "-".join(languages)) not in known:
                    raise unknown(f"direction in problem.{split}", name, known)
        return [*dict.fromkeys(path for part in self.parts.values() for path in part.corpus_files())]

    def split_files(self, split):
        return [*dict.fromkeys(path for part in self.parts.values() for path in part.split_files(split))]

    def forget(self):
        super().forget()
        for part in self.parts.values():
            part.forget()

    def pairs(self, split):
        for name, part in self.parts.items():
            if split not in part.splits:
                continue
            tag = language_tag(part.target)
            pairs = ((f"{tag} {source}" if source.strip() else source, target) for source, target in part.pairs(split))
            # A fractional file weight also selects pairs by their hash, but before they have a tag. Because the tag
            # changes the hash, the two selections are independent.
            yield from repeat_pairs(pairs, self.weights[name]) if split == "train" else pairs

    @functools.cached_property
    def weights(self):
        """{direction: number of copies of each training pair}.

        With temperature T, the probability of a direction with n pairs is proportional to n^(1/T) (Arivazhagan et al.
        2019). The largest direction, with N pairs, has one copy of each pair. Every other direction has
        (N/n)^(1 - 1/T) copies.
        """
        if self.temperature == 1:
            return dict.fromkeys(self.parts, 1.0)
        counts = {name: sum(1 for _ in part.pairs("train")) for name, part in self.parts.items()}
        largest, power = max(counts.values()), 1 - 1 / self.temperature
        weights = {name: (largest / max(count, 1)) ** power for name, count in counts.items()}
        for name, count in counts.items():
            logger.info(f"  {name}: {count:,} pairs, {weights[name]:.2f} copies of each")
        return weights

    def part_names(self, split):
        return [name for name, part in self.parts.items() if split in part.splits for _ in part.pairs(split)]

    def _check_tags(self, tokenizer):
        require(
            {*tokenizer.tags.values()} >= {*self.tags},
            f"problem.vocab_file must have the tags {', '.join(self.tags)} as whole pieces; train it with spm_train "
            f"--user_defined_symbols={','.join(self.tags)}",
        )

    def _vocabulary_options(self):
        options = super()._vocabulary_options()
        return dataclasses.replace(options, symbols=tuple(dict.fromkeys((*self.tags, *options.symbols))))
