"""Weighted sources of parallel text for a split: files in several formats, and datasets."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from keras_transformer.data.corpus import read_pairs
from keras_transformer.data.corpus_files import existing_file, existing_files, remedy
from keras_transformer.data.huggingface_dataset import PREFIX, HuggingFaceDataset
from keras_transformer.data.pair_files import READERS, is_pair_file, read_pair_file
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.text import text_digest


@dataclass(frozen=True)
class PairSource:
    """Parallel text in one file with both sides, in two files with one side each, or in a dataset.

    Attributes:
        paths: One file with both sides, or the source file and the target file, or the files of a local dataset.
        languages: Codes of the source and target language.
        weight: Number of copies of each pair (see `repeat_pairs`).
        swapped: Whether `pairs` swaps source and target.
        dataset: `HuggingFaceDataset`, or None for files.
    """

    paths: tuple
    languages: tuple[str, str]
    weight: float = 1.0
    swapped: bool = False
    dataset: HuggingFaceDataset | None = None

    def pairs(self):
        """Return an iterator over the pairs of texts, repeated according to the weight.

        Raises:
            UserError: A file is damaged. See `read_pairs`, `read_pair_file` and `HuggingFaceDataset.pairs`.
        """
        both = self._read()
        return repeat_pairs(((target, source) for source, target in both) if self.swapped else both, self.weight)

    def _read(self):
        if self.dataset:
            return self.dataset.pairs(*self.languages)
        return read_pairs(*self.paths) if len(self.paths) == 2 else read_pair_file(*self.paths, *self.languages)


def repeat_pairs(pairs, weight):
    """Yield each pair `weight` times. With a weight of 2.3, 30% of the pairs occur three times and the others twice."""
    copies = math.floor(weight)
    share = weight - copies
    for pair in pairs:
        for _ in range(copies):
            yield pair
        if share and hash_text("\t".join(pair)) < share * 2**64:
            yield pair


def find_source(folder, name, languages, required=False, by_settings=True):
    """Find the files of a split by their conventional names, and return a `PairSource`, or None if no files exist.

    Args:
        folder: Folder of the files.
        name: Name of the split. `train` matches `train.en` and `train.de`, or `train.tsv`, `train.jsonl` or
            `train.tmx`, plain or compressed.
        languages: Codes of the source and target language.
        required: Whether missing files are an error.
        by_settings: Whether error messages suggest problem settings that select other files.

    Raises:
        UserError: The split has files in more than one format, the file of one side is missing, or only a file with a
            similar name exists.
    """
    sides = [existing_file(folder, f"{name}.{language}") for language in languages]
    found = [path for suffix in READERS if (path := existing_file(folder, f"{name}{suffix}"))]
    found += filter(None, sides)
    if len(found) > (2 if all(sides) else 1):
        choice = f"choose one of them with --set problem.{name}=FILE" if by_settings else "keep one of them"
        raise UserError(f"{folder} contains {' and '.join(path.name for path in found)}; {choice}")
    if found and not any(sides):
        return PairSource((found[0],), languages)
    if required or any(sides) or any(remedy(folder, f"{name}.{language}") for language in languages):
        return PairSource(_both(folder, name, languages, by_settings), languages)
    return None


def parse_sources(text, folder, languages, split="train", by_settings=True):
    """Return the `PairSource`s of a list such as `news.tsv,memory.tmx:3,web,dataset:talks`.

    Args:
        text: Paths, separated by commas. A path without a known suffix refers to two files: `web` means `web.en` and
            `web.de`. A number after the last colon is a weight. For datasets, see `HuggingFaceDataset.parse`.
        folder: Base folder of relative paths.
        languages: Codes of the source and target language.
        split: Default split of datasets.
        by_settings: See `find_source`.

    Raises:
        UserError: A file is missing, or a weight is not a positive number.
    """
    sources = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, number = _parse_weight(item)
        path = Path(folder) / os.path.expanduser(name)
        if name.startswith(PREFIX):
            dataset = HuggingFaceDataset.parse(name, folder, split)
            sources.append(PairSource(tuple(dataset.files()), languages, number, dataset=dataset))
        elif is_pair_file(path):
            if not path.is_file():
                raise UserError(f"{path} does not exist")
            sources.append(PairSource((path,), languages, number))
        else:
            sources.append(PairSource(_both(path.parent, path.name, languages, by_settings), languages, number))
    if not sources:
        raise UserError(f"a list of files must contain at least one file, got {text!r}")
    return sources


def _parse_weight(item):
    """Split an item of a list for `parse_sources` into its name and its weight."""
    name, colon, weight = item.rpartition(":")
    try:
        number = float(weight)
    except ValueError:
        number = math.nan
    # The name of a dataset may contain colons. If the last part is not a number, it belongs to the name.
    if not colon or item.startswith(PREFIX) and math.isnan(number):
        return item, 1.0
    if not 0 < number <= 1000:
        raise UserError(f"the weight of {name} must be a number above 0 and at most 1000, got {weight!r}")
    return name, number


def hash_text(text):
    """Return a hash of a text, from 0 to 2^64 - 1. Unlike `hash`, it is the same in every process."""
    return int.from_bytes(text_digest(text))


def _both(folder, name, languages, by_settings):
    """Return the two files of a source. Raise a `UserError` if one of them is missing."""
    otherwise = f"; {files_in(folder)}"
    if by_settings:
        otherwise += ". Set the languages with --set problem.source=SRC --set problem.target=TGT"
    return tuple(existing_files(folder, [f"{name}.{language}" for language in languages], otherwise))


def files_in(folder):
    """Return a description of the files in a folder for an error message."""
    if not Path(folder).is_dir():
        return "the folder is missing"
    names = sorted(path.name for path in Path(folder).iterdir() if path.is_file())
    several = f"{', '.join(names[:6])}{', …' if len(names) > 6 else ''}"
    return f"the folder contains {several if names else 'no files'}"
