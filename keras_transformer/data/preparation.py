"""Preparation of a token store: encoding of each split in chunks, and joining of the chunks into columns.

The file name of a chunk contains the position and the checksum of its texts. When an interrupted preparation resumes,
it encodes only the chunks whose files are missing.
"""

import contextlib
import functools
import json
import logging
import time

import numpy as np

from keras_transformer.data.columns import add_checksums
from keras_transformer.data.encoding import EXAMPLES, NO_NOISE, SERIAL_PAIRS, ChunkWriter, examples_of
from keras_transformer.data.filters import EMPTY, PairFilter
from keras_transformer.data.length_index import write_index
from keras_transformer.data.token_store import SIDES, VERIFIED, VERSION, file_status
from keras_transformer.utils.files import write_json
from keras_transformer.utils.timing import duration

logger = logging.getLogger(__name__)

CHUNKS = "*.npz"
SECONDS = 5.0  # minimum time between progress lines


class ChangedTexts(Exception):
    """Error for texts that have changed since an earlier preparation was interrupted."""


class Progress:
    """Progress log of a split, with at most one line every `SECONDS` seconds.

    The first `SERIAL_PAIRS` pairs of a split produce no progress lines.

    Args:
        split: Name of the split.
        expected: Number of pairs, or None if it is unknown.
    """

    def __init__(self, split, expected=None):
        self._split, self._expected = split, expected
        self._encoded = self._skipped = 0
        self._start = self._last = time.monotonic()

    def update(self, pairs, skipped):
        """Add `pairs` to the count, and return the total.

        `skipped` is True for pairs that an earlier, interrupted preparation already encoded.
        """
        if skipped:
            self._skipped += pairs
        else:
            if self._skipped and not self._encoded:
                self._start = time.monotonic()
                logger.info(f"  {self._split}: resuming after {self._skipped:,} pairs")
            self._encoded += pairs
            self._log_rate()
        return self._encoded + self._skipped

    def _log_rate(self):
        now, done = time.monotonic(), self._encoded + self._skipped
        if done > SERIAL_PAIRS and now - self._last >= SECONDS:
            self._last = now
            rate = self._encoded / (now - self._start)
            left = f", {duration((self._expected - done) / rate)} left" if self._expected else ""
            logger.info(f"  {self._split}: {done:,} pairs, {rate:,.0f} pairs/s{left}")


def write_chunks(
    work, splits, tokenizer, filters=None, *, expected=None, workers=None, noise=None, shard=(1, 1)
):  # fmt: skip
    """Encode pairs of texts into the chunk files of all splits, and return {split: paths}. Skip existing chunks.

    Args:
        work: `WorkDirectory` with the saved tokenizer.
        splits: {name: iterable of (source, target) texts}.
        tokenizer: `Tokenizer`.
        filters: {name of a split: `PairFilter`}.
        expected: {name of a split: number of pairs}, if known.
        workers: See `ChunkWriter`.
        noise: {name of a split: `encoding.Noise`}.
        shard: See `ChunkWriter`.

    Raises:
        ChangedTexts: The texts differ from those of the interrupted preparation.
        Exception: Any exception from the iteration over pairs.
    """
    filters, expected, noise = filters or {}, expected or {}, noise or {}
    work.keep |= max(expected.values(), default=0) > SERIAL_PAIRS
    chunks = {}
    with ChunkWriter(tokenizer, work.folder, workers, shard) as writer:
        for split, pairs in splits.items():
            chunks[split], pair_filter = [], filters.get(split, PairFilter())
            progress = Progress(split, expected.get(split, 0) // shard[1])
            for path, count, skipped in writer.write(split, pairs, pair_filter, noise.get(split, NO_NOISE)):
                chunks[split].append(path)
                work.keep |= progress.update(count, skipped) > SERIAL_PAIRS
            if {*chunks[split]} != {*work.folder.glob(f"{split}.{CHUNKS}")}:
                raise ChangedTexts
    return chunks


def write_store(work, splits, tokenizer, manifest, filters=None, **options):
    """Write the files of a `TokenStore` to a `WorkDirectory`, or resume an interrupted preparation in it.

    The function needs memory for a few chunks per worker, and about 50 bytes per pair to drop duplicates.

    Args:
        work: `WorkDirectory`.
        splits: {name: iterable of (source, target) texts}.
        tokenizer: `Tokenizer`, which is saved in the store.
        manifest: Dictionary with additional information about the corpus.
        filters: {name of a split: `PairFilter`}.
        **options: See `write_chunks`.

    Raises:
        ChangedTexts: The texts differ from those of the interrupted preparation.
        Exception: Any exception from the iteration over pairs.
    """
    if not (work.folder / "manifest.json").is_file():
        tokenizer.save(work.folder)
        chunks = write_chunks(work, splits, tokenizer, filters, **options)
        counts, dropped, files = _join_splits(work.folder, chunks, filters or {}, tokenizer)
        write_json(work.folder / VERIFIED, {name: file_status(work.folder / name) for name in files})
        write_json(
            work.folder / "manifest.json",
            {**manifest, "version": VERSION, "vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.fingerprint,
             "splits": counts, "dropped": dropped, "files": files},
        )  # fmt: skip
    for path in work.folder.glob(CHUNKS):  # needed only to resume an interrupted preparation
        path.unlink()


def _join_splits(folder, chunks, filters, tokenizer):
    """Join the chunks of all splits, {split: paths}, into columns.

    Returns:
        Three dictionaries for the manifest: {split: counts}, {split: {reason: examples of dropped pairs}} and
        {file: entry}.
    """
    counts, dropped, files = {}, {}, {}
    others = [chunk for split in chunks if split != "train" for chunk in chunks[split]]
    held_out = {kind: np.concatenate([np.empty(0, np.uint64), *_hashes(others, kind)]) for kind in ("pairs", "sources")}
    for split, paths in chunks.items():
        drops = filters.get(split, PairFilter()).by_corpus(functools.partial(_hashes, paths), held_out)
        counts[split], dropped[split], entries = _join(folder, split, paths, drops, tokenizer)
        files |= entries
        if "train" in chunks and split != "train" and not filters.get("train", PairFilter()).drop_overlap:
            if common := _count_common(paths, chunks["train"]):
                counts[split]["pairs_also_in_training"] = common
    return counts, dropped, files


def _join(folder, split, chunks, drops, tokenizer):
    """Join the chunks of a split into its columns, without the pairs marked in `drops`, {reason: bool `[rows]`}.

    Returns:
        The counts, the examples of dropped pairs, and the manifest entries of the files.
    """
    dtypes = {f"{side}.{kind}": dtype for side in SIDES for kind, dtype in
              (("ids", tokenizer.id_type.name), ("offsets", "int64"))}  # fmt: skip
    first = empty = 0
    counts, dropped = {"pairs": 0, "source_tokens": 0, "target_tokens": 0}, {}
    with contextlib.ExitStack() as stack:
        columns = {name: stack.enter_context(open(folder / f"{split}.{name}", "wb")) for name in dtypes}
        for side in SIDES:
            columns[f"{side}.offsets"].write(np.zeros(1, np.int64).tobytes())
        for path in chunks:
            with np.load(path) as chunk:
                rows = len(chunk["pairs"])
                here = {reason: pairs[first : first + rows] for reason, pairs in drops.items()}
                kept, first = ~np.logical_or.reduce([np.full(rows, False), *here.values()]), first + rows
                for reason, (count, examples) in json.loads(chunk["dropped"].tobytes()).items():
                    _count(dropped, reason, count, examples)
                for reason, pairs in here.items():
                    _count(dropped, reason, int(pairs.sum()), _decoded(tokenizer, chunk, pairs))
                lengths = [chunk[f"{side}.lengths"] for side in SIDES]
                for side, length in zip(SIDES, lengths):
                    columns[f"{side}.ids"].write(chunk[f"{side}.ids"][np.repeat(kept, length)].tobytes())
                    offsets = counts[f"{side}_tokens"] + np.cumsum(length[kept], dtype=np.int64)
                    columns[f"{side}.offsets"].write(offsets.tobytes())
                    counts[f"{side}_tokens"] += int(length[kept].sum())
                counts["pairs"] += int(kept.sum())
                empty += int((np.minimum(*lengths)[kept] == 1).sum())
    if empty:
        counts["pairs_with_an_empty_side"] = empty
    counts |= {reason: count for reason, (count, _) in dropped.items() if count or reason != EMPTY}
    entries = {}
    for name, dtype in dtypes.items():
        entries |= add_checksums(folder / f"{split}.{name}", dtype)
    lengths = [_Lengths(folder / f"{split}.{side}.offsets", counts["pairs"]) for side in SIDES]
    entries |= write_index(folder / split, *lengths)
    return counts, {reason: examples for reason, (_, examples) in dropped.items() if examples}, entries


class _Lengths:
    """Lengths of sequences, `[pairs]`. To save memory, the object computes each slice from the offsets on demand."""

    def __init__(self, path, pairs):
        self._offsets, self._pairs = np.memmap(path, np.int64, mode="r"), pairs

    def __len__(self):
        return self._pairs

    def __getitem__(self, rows):
        return np.diff(self._offsets[rows.start : rows.stop + 1])


def _count(dropped, reason, count, examples):
    """Add the count and the examples of dropped pairs to the entry of `reason` in `dropped`."""
    total, known = dropped.get(reason, (0, []))
    dropped[reason] = total + count, (known + examples)[:EXAMPLES]


def _decoded(tokenizer, chunk, rows):
    """Return decoded examples of the pairs in a chunk for which `rows`, bool `[pairs]`, is True."""
    ends = [np.cumsum(chunk[f"{side}.lengths"]) for side in SIDES]
    pairs = []
    for row in np.flatnonzero(rows)[:EXAMPLES]:
        source, target = (
            chunk[f"{side}.ids"][end[row] - chunk[f"{side}.lengths"][row] : end[row]].tolist()
            for side, end in zip(SIDES, ends)
        )
        (text,) = tokenizer.decode([source])
        pairs.append((text, *tokenizer.decode_outputs([text], [target])))
    return examples_of(pairs, np.full(len(pairs), True))


def _hashes(chunks, kind):
    """Yield the hashes of the "pairs" or "sources" of each chunk, uint64 `[rows]`."""
    for path in chunks:
        with np.load(path) as chunk:
            yield chunk[kind]


def _count_common(chunks, train):
    """Return the number of pairs in the chunks of a split that also occur in the chunks of the training split."""
    hashes = np.concatenate([np.empty(0, np.uint64), *_hashes(chunks, "pairs")])
    common = np.full(len(hashes), False)
    for block in _hashes(train, "pairs") if len(hashes) else ():
        common |= np.isin(hashes, block)
    return int(common.sum())
