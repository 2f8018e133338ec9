"""Writing a token store so that a process that is killed in the middle loses seconds: columns and a journal of them."""

import contextlib
import itertools
import json
import os
import time
import zlib

import numpy as np

from keras_transformer.data.encoding import SERIAL_PAIRS, Encoders, checksum, cut_into_chunks, id_type
from keras_transformer.data.filters import PairFilter, copy_rows, count_common, find_duplicates, read_blocks
from keras_transformer.utils.files import atomic_open, sha256, sync
from keras_transformer.utils.timing import duration

SIDES = ("source", "target")
JOURNAL, UNIQUE, HASHES = "journal.jsonl", ".unique", ".hashes"
SECONDS = 5.0  # between lines of progress


class OutdatedParts(Exception):
    """The parts that a killed preparation left were made of other texts than `pairs` gives now."""


class Progress:
    """Reports how far a split is, at most every `SECONDS`, and of a small corpus nothing.

    Args:
        report: Called with a line.
        what: What the pairs are, to begin the line with.
        expected: Number of pairs, if it is known.
        done: Pairs that were done before.
    """

    def __init__(self, report, what, expected=None, done=0):
        self._report, self._what, self._expected, self._first = report, what, expected, done
        self._began = self._said = time.monotonic()

    def update(self, pairs):
        """Takes the number of pairs done."""
        now = time.monotonic()
        if pairs <= SERIAL_PAIRS or now - self._said < SECONDS:
            return
        self._said = now
        rate = (pairs - self._first) / (now - self._began)
        line = f"  {self._what}: {pairs:,} pairs, {rate:,.0f} pairs/s"
        if self._expected and rate:
            line += f", {duration((self._expected - pairs) / rate)} left"
        self._report(line)


class Journal:
    """What is done of a preparation: a JSON list a line, its kind first. What a crash cut short is left out.

    ["expected", {split: pairs}]                                    what the learning of the vocabulary has counted
    ["part", split, pairs, CRC of texts, [bytes, …], CRC of bytes, empty]  a chunk, with what it added to each column
    ["unique", split, dropped]                                      the columns without duplicates are on disk
    ["done", split, counts, files]                                  the split is whole

    Args:
        folder: Its directory.
    """

    def __init__(self, folder):
        self.path = folder / JOURNAL
        self.lines = []
        with contextlib.suppress(FileNotFoundError, UnicodeDecodeError, json.JSONDecodeError):
            for line in self.path.read_text(encoding="utf-8").splitlines():
                self.lines.append(json.loads(line))
        self.keep(lambda line: True)

    def append(self, *line):
        """Adds a line."""
        self.lines.append([*line])
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def keep(self, which):
        """Leaves out the lines for which `which(line)` is false."""
        self.lines = [line for line in self.lines if which(line)]
        with atomic_open(self.path) as file:
            file.writelines(json.dumps(line) + "\n" for line in self.lines)

    def of(self, kind, split=None):
        """Returns what the lines of a kind say, of one split where it is named."""
        start = [kind] if split is None else [kind, split]
        return [line[len(start) :] for line in self.lines if line[: len(start)] == start]


class Columns:
    """The files of a split that chunks are appended to; a context manager.

    Args:
        folder: Their directory.
        split: Name of the split.
        names: Names of the columns.
    """

    def __init__(self, folder, split, names):
        self._files = {}
        with contextlib.ExitStack() as stack:
            for name in names:
                path = folder / f"{split}.{name}"
                path.touch()
                self._files[name] = stack.enter_context(open(path, "rb+"))
            self._stack = stack.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._stack.close()

    def holds(self, sizes, crc):
        """Whether what comes next in the columns has this CRC-32; it is passed over."""
        found = 0
        for file, size in zip(self._files.values(), sizes):
            found = zlib.crc32(file.read(size), found)
        return found == crc

    def cut(self, sizes):
        """Cuts each column to so many bytes and goes on from there."""
        for file, size in zip(self._files.values(), sizes):
            file.truncate(size)
            file.seek(size)

    def append(self, columns):
        """Appends {name: bytes}; returns the sizes and their CRC-32."""
        crc = 0
        for name, file in self._files.items():
            file.write(columns[name])
            file.flush()
            crc = zlib.crc32(columns[name], crc)
        return [len(columns[name]) for name in self._files], crc


def write_parts(
    work, splits, tokenizer, filters=None, expected=None, report=lambda message: None, workers=None, bpe_dropout=None
):  # fmt: skip
    """Encodes pairs of texts to the files of a store, all but its manifest; goes on where a killed process stopped.

    Memory is that of a few chunks for each worker, whatever the number of pairs; with `drop_duplicates` and one byte a
    pair besides.

    Args:
        work: `WorkDirectory`, in which the tokenizer is saved.
        splits: {name: iterable of (source, target) texts}.
        tokenizer: `Tokenizer`.
        filters: {name of a split: `PairFilter`}.
        expected: {name of a split: number of pairs}, as far as known.
        report: Called with lines about the progress of a large corpus.
        workers: As for `Encoders`.
        bpe_dropout: {name of a split: share of joints left out where its texts are cut into pieces}.

    Returns:
        {split: counts} and {file: entry}, as in a manifest.

    Raises:
        OutdatedParts: The texts are not those that the killed process had.
        Exception: Whatever the iteration over pairs raises.
    """
    journal, counts, files = Journal(work.folder), {}, {}
    if expected:
        journal.append("expected", expected)
    expected = {split: pairs for (entry,) in journal.of("expected") for split, pairs in entry.items()}
    work.keep = max(expected.values(), default=0) > SERIAL_PAIRS
    with Encoders(tokenizer, work.folder, workers) as encoders:
        for split, pairs in splits.items():
            if not journal.of("done", split):
                pair_filter = (filters or {}).get(split, PairFilter())
                writer = _SplitWriter(work, journal, split, tokenizer, pair_filter)
                if not journal.of("unique", split):
                    rate = (bpe_dropout or {}).get(split, 0.0)
                    writer.write(pairs, encoders, report, expected.get(split), rate)
                journal.append("done", split, *writer.finish())
            ((counts[split], entries),) = journal.of("done", split)
            files |= entries
    for split in counts.keys() - {"train"}:
        if "train" in counts and (common := count_common(*(work.folder / f"{s}{HASHES}" for s in (split, "train")))):
            counts[split]["pairs_also_in_training"] = common
    return counts, files


class _SplitWriter:
    """Writes one split."""

    def __init__(self, work, journal, split, tokenizer, pair_filter):
        self.work, self.folder, self.journal, self.split = work, work.folder, journal, split
        self.filter, self.id_type = pair_filter, id_type(tokenizer)
        self.columns = [f"{side}.{kind}" for side in SIDES for kind in ("ids", "lengths")]
        self.hashes = self.folder / f"{split}{HASHES}"

    def path(self, column):
        """Returns the file of a column."""
        return self.folder / f"{self.split}.{column}"

    def write(self, pairs, encoders, report, expected, bpe_dropout):
        """Encodes the pairs, but those that the journal says are done."""
        pairs = iter(pairs)
        with Columns(self.folder, self.split, [*self.columns, "hashes"]) as columns:
            done = self._resume(pairs, columns)
            if done:
                report(f"  {self.split}: going on after {done:,} pairs")
            progress = Progress(report, self.split, expected, done)
            for encoded in encoders.encode(cut_into_chunks(pairs), self.filter, bpe_dropout, done):
                sizes, crc = columns.append(encoded.columns)
                self.journal.append("part", self.split, encoded.pairs, encoded.checksum, sizes, crc, encoded.empty)
                done += encoded.pairs
                self.work.keep = self.work.keep or done > SERIAL_PAIRS
                progress.update(done)

    def _resume(self, pairs, columns):
        """Passes over what is done in `pairs` and in the columns; returns the number of pairs."""
        parts, good, done, ends = self.journal.of("part", self.split), 0, 0, [0] * 5
        for count, text, sizes, crc, _ in parts:
            if not columns.holds(sizes, crc):  # the machine stopped before it was on disk
                break
            if checksum(list(itertools.islice(pairs, count))) != text:
                raise OutdatedParts
            good, done, ends = good + 1, done + count, [end + size for end, size in zip(ends, sizes)]
        columns.cut(ends)
        if good < len(parts):
            numbers = itertools.count()
            self.journal.keep(lambda line: line[:2] != ["part", self.split] or next(numbers) < good)
        self.work.keep = self.work.keep or done > SERIAL_PAIRS
        return done

    def finish(self):
        """Removes duplicates; returns the counts and the manifest's entries of the files."""
        dropped = self._drop_duplicates()
        counts = {"pairs": self.path("source.lengths").stat().st_size // 4, "source_tokens": 0, "target_tokens": 0}
        empty = 0
        lengths = [read_blocks(self.path(f"{side}.lengths"), np.int32) for side in SIDES]
        for source, target in zip(*lengths):
            counts["source_tokens"] += int(source.sum(dtype=np.int64))
            counts["target_tokens"] += int(target.sum(dtype=np.int64))
            empty += int(((source == 1) | (target == 1)).sum())
        if empty:
            counts["pairs_with_an_empty_side"] = empty
        parts = self.journal.of("part", self.split)
        read, dropped_empty = sum(part[0] for part in parts), sum(part[-1] for part in parts)
        if dropped_empty:
            counts["dropped_with_an_empty_side"] = dropped_empty
        if self.filter.max_length_ratio is not None:
            counts["dropped_for_their_length_ratio"] = read - counts["pairs"] - dropped - dropped_empty
        if self.filter.drop_duplicates:
            counts["dropped_as_duplicates"] = dropped
        entries = {}
        for column in self.columns:
            path, dtype = self.path(column), self.id_type.name if column.endswith("ids") else "int32"
            sync(path)  # the journal is not to know more than the disk
            entries[path.name] = {"bytes": path.stat().st_size, "dtype": dtype, "sha256": sha256(path)}
        return counts, entries

    def _drop_duplicates(self):
        """Leaves out of the columns the rows that were there before; returns their number."""
        if not self.filter.drop_duplicates:
            return 0
        if not self.journal.of("unique", self.split):
            duplicate = find_duplicates(self.hashes)
            if duplicate.any():
                for side in SIDES:
                    files = self.path(f"{side}.lengths"), self.path(f"{side}.ids")
                    copy_rows(~duplicate, *files, self.id_type, UNIQUE)
            self.journal.append("unique", self.split, int(duplicate.sum()))
        # From here on the copies are what counts; a process that is killed while they take their places goes on here.
        for column in self.columns:
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path(column)}{UNIQUE}", self.path(column))
        return self.journal.of("unique", self.split)[0][0]
