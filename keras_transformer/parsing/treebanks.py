"""The files of treebanks, and which of them, or which of their trees, make the splits."""

import re
from pathlib import Path

from keras_transformer.data.corpus import read_lines
from keras_transformer.parsing.tree import read_trees
from keras_transformer.utils.errors import UserError

WSJ_SECTIONS = {"train": range(2, 22), "validation": (22,), "test": (23,)}
"""Sections of the Wall Street Journal, as all work on it divides them."""

WSJ_SAMPLE = {"train": range(1, 180), "validation": range(180, 190), "test": range(190, 200)}
"""File numbers of NLTK's sample, wsj_0001 to wsj_0199, in place of sections that it lacks."""

_WSJ_FILE = re.compile(r"wsj_(\d\d)(\d\d)\.mrg")


def read_treebank(paths):
    """Yield the `Tree`s of files, as they are written there.

    Raises:
        UserError: A file is missing or no text, or its brackets are wrong; it says in which line.
    """
    for path in paths:
        yield from read_trees(read_lines(path), path)


def wsj_files(folder):
    """Return {split: paths} of the Penn Treebank's Wall Street Journal.

    Args:
        folder: What holds the files wsj_SSNN.mrg, in the folders of sections or all in one. Where no section from 02 on
            is there, it is the sample, and is divided as `WSJ_SAMPLE` says.

    Raises:
        UserError: Sections are missing, or there is none.
    """
    found = {}
    for path in sorted(_existing(folder).rglob("wsj_*.mrg")):
        if match := _WSJ_FILE.fullmatch(path.name):
            found[int(match[1]), int(match[2])] = path
    if not found:
        raise UserError(f"{folder} has no files wsj_0001.mrg and so on, as the LDC distributes them")
    if any(section >= 2 for section, _ in found):
        splits = {split: [] for split in WSJ_SECTIONS}
        for split, sections in WSJ_SECTIONS.items():
            for section in sections:
                paths = [path for (number, _), path in found.items() if number == section]
                if not paths:
                    name = f"section {section:02d} (wsj_{section:02d}01.mrg and so on)"
                    raise UserError(f"{folder} lacks {name}, of the {split} split")
                splits[split] += paths
        return splits
    numbered = {100 * section + number: path for (section, number), path in found.items()}
    splits = {split: [numbered[i] for i in numbers if i in numbered] for split, numbers in WSJ_SAMPLE.items()}
    for split, paths in splits.items():
        if not paths:
            numbers = WSJ_SAMPLE[split]
            raise UserError(
                f"{folder} lacks all of wsj_{numbers[0]:04d}.mrg to wsj_{numbers[-1]:04d}.mrg, of the {split} split"
            )
    return splits


GUM_PARTITIONS = {"train": "train", "validation": "dev", "test": "test"}


def gum_files(folder):
    """Return {split: paths} of GUM's constituent trees, by its official partition, `splits.md`.

    Documents from Reddit may be missing, since their words are not distributed.

    Raises:
        UserError: `splits.md` or a document is missing.
    """
    folder, documents, partition = _existing(folder), {}, None
    for line in read_lines(folder / "splits.md"):
        if line.startswith("## "):
            partition = line[3:].strip()
        elif match := re.match(r"\s*\*\s+(\w+)", line):
            documents.setdefault(partition, []).append(match[1])
    splits = {}
    for split, partition in GUM_PARTITIONS.items():
        if partition not in documents:
            raise UserError(f"{folder / 'splits.md'} names no documents under '## {partition}'")
        paths = [folder / f"{name}.ptb" for name in documents[partition]]
        missing = [path for path in paths if not path.is_file() and "_reddit_" not in path.name]
        if missing:
            raise UserError(
                f"{missing[0]} does not exist, which {folder / 'splits.md'} names; give the folder of GUM's .ptb files "
                "and splits.md with --raw_dir"
            )
        splits[split] = [path for path in paths if path.is_file()]
    return splits


HELD_OUT_SHARE = 0.05


def icepahc_files(folder):
    """Return the .psd files of IcePaHC.

    Raises:
        UserError: There is none.
    """
    if paths := sorted(_existing(folder).rglob("*.psd")):
        return paths
    raise UserError(f"{folder} has no .psd files, which IcePaHC's trees are in")


def part_of_text(trees, split):
    """Return the part of a text's trees that belongs to a split: the last 5% are test, the 5% before validation.

    So each split has all centuries, of which IcePaHC has ten, and no paragraph is divided but two of each text.
    """
    held_out = round(len(trees) * HELD_OUT_SHARE)
    ends = len(trees) - 2 * held_out, len(trees) - held_out
    return {"train": trees[: ends[0]], "validation": trees[ends[0] : ends[1]], "test": trees[ends[1] :]}[split]


def _existing(folder):
    if not Path(folder).is_dir():
        raise UserError(f"there is no folder {folder}; give that of the treebank with --raw_dir")
    return Path(folder)
