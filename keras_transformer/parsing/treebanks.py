"""Treebank files and their division into splits."""

import re
from pathlib import Path

from keras_transformer.data.corpus import read_lines
from keras_transformer.parsing.tree import read_trees
from keras_transformer.utils.errors import UserError

WSJ_SECTIONS = {"train": range(2, 22), "validation": (22,), "test": (23,)}
"""Standard split of the sections of the Wall Street Journal."""

WSJ_SAMPLE = {"train": range(1, 180), "validation": range(180, 190), "test": range(190, 200)}
"""Split of NLTK's sample by file number, wsj_0001 to wsj_0199. The sample lacks the standard sections."""

_WSJ_FILE = re.compile(r"wsj_(\d\d)(\d\d)\.mrg")


def read_treebank(paths):
    """Yield the `Tree`s of files without normalizing them.

    Raises:
        UserError: A file is missing, is not text, or has malformed brackets.
    """
    for path in paths:
        yield from read_trees(read_lines(path), path)


def wsj_files(folder):
    """Return {split: paths} for the Wall Street Journal part of the Penn Treebank.

    Args:
        folder: Folder of the files wsj_SSNN.mrg, with or without subfolders. If it contains only sections 00 and 01,
            the files are NLTK's sample, and `WSJ_SAMPLE` defines the splits.

    Raises:
        UserError: The folder or a section is missing.
    """
    found = {}
    for path in sorted(_existing(folder).rglob("wsj_*.mrg")):
        if match := _WSJ_FILE.fullmatch(path.name):
            found[int(match[1]), int(match[2])] = path
    if not found:
        raise UserError(
            f"{folder} contains no treebank files of the LDC, such as wsj_0001.mrg. Set --raw_dir to their folder."
        )
    if any(section >= 2 for section, _ in found):
        splits = {split: [] for split in WSJ_SECTIONS}
        for split, sections in WSJ_SECTIONS.items():
            for section in sections:
                paths = [path for (number, _), path in found.items() if number == section]
                if not paths:
                    files = f"wsj_{section:02d}01.mrg, …"
                    raise UserError(f"{folder} must contain section {section:02d} of the {split} split ({files})")
                splits[split] += paths
        return splits
    numbered = {100 * section + number: path for (section, number), path in found.items()}
    splits = {split: [numbered[i] for i in numbers if i in numbered] for split, numbers in WSJ_SAMPLE.items()}
    for split, paths in splits.items():
        if not paths:
            numbers = WSJ_SAMPLE[split]
            raise UserError(
                f"{folder} must contain the files of the {split} split, wsj_{numbers[0]:04d}.mrg to "
                f"wsj_{numbers[-1]:04d}.mrg"
            )
    return splits


GUM_PARTITIONS = {"train": "train", "validation": "dev", "test": "test"}


def gum_files(folder):
    """Return {split: paths} for the constituency trees of GUM, with the official partition from `splits.md`.

    Documents from Reddit may be missing, because GUM does not distribute their words. The function skips documents
    from Reddit with underscores instead of words.

    Raises:
        UserError: The folder, `splits.md` or a document is missing.
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
            raise UserError(f"{folder / 'splits.md'} lists no documents under '## {partition}'. Use GUM's splits.md.")
        paths = [folder / f"{name}.ptb" for name in documents[partition]]
        missing = [path for path in paths if not path.is_file() and "_reddit_" not in path.name]
        if missing:
            raise UserError(
                f"{missing[0]}, which {folder / 'splits.md'} lists, does not exist. Set --raw_dir "
                "to the folder of GUM's .ptb files and splits.md."
            )
        splits[split] = [path for path in paths if path.is_file() and not _is_masked(path)]
    return splits


def _is_masked(path):
    """Return whether a document of GUM is from Reddit and contains underscores instead of words."""
    if "_reddit_" not in path.name:
        return False
    words = re.findall(r"\s([^\s()]+)\)", "\n".join(read_lines(path)))
    return bool(words) and all(set(word) == {"_"} for word in words)


HELD_OUT_SHARE = 0.05


def icepahc_files(folder):
    """Return the paths of the .psd files of IcePaHC.

    Raises:
        UserError: The folder is missing or contains no .psd files.
    """
    if paths := sorted(_existing(folder).rglob("*.psd")):
        return paths
    raise UserError(f"{folder} contains no IcePaHC .psd files. Set --raw_dir to the folder with these files.")


def part_of_text(trees, split):
    """Return the trees of a text that belong to a split.

    The last 5% of the trees belong to test, the preceding 5% to validation, and all earlier trees to train. Every split
    therefore contains text from all ten centuries of IcePaHC. The two borders between splits divide at most two
    paragraphs per text.
    """
    held_out = round(len(trees) * HELD_OUT_SHARE)
    ends = len(trees) - 2 * held_out, len(trees) - held_out
    return {"train": trees[: ends[0]], "validation": trees[ends[0] : ends[1]], "test": trees[ends[1] :]}[split]


def _existing(folder):
    if not Path(folder).is_dir():
        raise UserError(f"the folder {folder} does not exist. Set --raw_dir to the folder of the treebank.")
    return Path(folder)
