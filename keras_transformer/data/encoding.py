"""Functions that encode pairs of texts in chunks and write the chunks to files, optionally in worker processes."""

import collections
import concurrent.futures
import contextlib
import itertools
import json
import multiprocessing
import multiprocessing.resource_tracker
import os
import random
import signal
import sys
import threading
import types
import zlib
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple
from unittest import mock

import numpy as np

from keras_transformer.data.filters import hash_pairs, hash_texts
from keras_transformer.data.placeholder_insertion import insert_placeholders
from keras_transformer.data.tokenizers.base import EOS
from keras_transformer.data.tokenizers.loading import load_tokenizer
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_open
from keras_transformer.utils.machine import usable_cores

CHUNK_PAIRS, CHUNK_CHARACTERS = 5_000, 4_000_000
SERIAL_PAIRS = 50_000
"""Number of pairs that this process encodes before it starts worker processes."""
MAX_WORKERS = 8
"""Maximum number of workers, each of which needs 0.1 GB of memory. More workers would wait for the corpus reader."""
EXAMPLES, EXAMPLE_CHARACTERS = 3, 200
"""Maximum number of examples for each reason to drop pairs, and maximum number of characters per side of an example."""

_tokenizer = None
"""Tokenizer in a worker process. In the main process, it is None."""


class Noise(NamedTuple):
    """Random changes to pairs during encoding. Filters and checks for duplicates see the original pairs."""

    bpe_dropout: float = 0.0
    """Probability that BPE-dropout skips a merge."""
    placeholders: float | None = None
    """Share of the pairs that get placeholders at random, or None to insert none (see `data.placeholder_insertion`)."""


NO_NOISE = Noise()


def cut_into_chunks(pairs):
    """Yield consecutive pairs in lists of limited size. The boundaries between the lists depend only on the pairs."""
    chunk, characters = [], 0
    for source, target in pairs:
        chunk.append((source, target))
        characters += len(source) + len(target)
        if len(chunk) == CHUNK_PAIRS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def checksum(pairs):
    """Return the CRC-32 of the texts of pairs."""
    return zlib.crc32("\0".join(itertools.chain.from_iterable(pairs)).encode("utf-8", "surrogatepass"))


def encode_pairs(tokenizer, pairs, pair_filter, noise=NO_NOISE, first=0):
    """Drop pairs of a chunk by the rules of `pair_filter.by_pair`, and encode the remaining pairs as arrays.

    Args:
        tokenizer: `Tokenizer`.
        pairs: List of pairs of texts.
        pair_filter: `PairFilter`.
        noise: `Noise`.
        first: Index of the first pair in its split, which seeds the noise.

    Returns:
        {name: array}. `source.ids` and `target.ids` contain the ids of all rows, each followed by EOS. `source.lengths`
        and `target.lengths`, int32 `[rows]`, contain the number of ids in each row. `pairs` and `sources`, uint64
        `[rows]`, contain hashes of the pairs and of their sources. `dropped`, uint8, contains
        {reason: [number of pairs, examples]} as JSON.
    """
    sources, targets = zip(*pairs)
    sides = [tokenizer.encode(sources), tokenizer.encode_targets(targets)]
    lengths = [*map(_lengths, sides)]  # before adding noise, which must not affect the filters
    drops = pair_filter.by_pair(pairs, np.stack(lengths))
    dropped = {reason: [int(rows.sum()), examples_of(pairs, rows)] for reason, rows in drops.items()}
    if any(count for count, _ in dropped.values()):
        keep = ~np.logical_or.reduce([*drops.values()])
        pairs, *sides = (list(itertools.compress(rows, keep)) for rows in (pairs, *sides))
    if noise.placeholders is not None:
        sides = _with_placeholders(tokenizer, pairs, sides, noise.placeholders, first)
    if noise.bpe_dropout:
        sides = [tokenizer.resegment(side, noise.bpe_dropout, 2 * first + i) for i, side in enumerate(sides)]
    arrays = {"pairs": hash_pairs(pairs), "sources": hash_texts(source for source, _ in pairs)}
    arrays["dropped"] = np.frombuffer(json.dumps(dropped).encode(), np.uint8)
    for name, side in zip(("source", "target"), sides):
        length = _lengths(side)
        ends = np.cumsum(length)
        ids = np.full(length.sum(), EOS, tokenizer.id_type)
        inside = np.full(len(ids), True)
        inside[ends - 1] = False
        ids[inside] = np.fromiter(itertools.chain.from_iterable(side), ids.dtype, len(ids) - len(ends))
        arrays |= {f"{name}.ids": ids, f"{name}.lengths": length}
    return arrays


def _with_placeholders(tokenizer, pairs, sides, share, first):
    """Return the ids of both sides of the pairs after `insert_placeholders`. Encode only the changed pairs again."""
    changed, count = {}, len(tokenizer.placeholders)
    for row, pair in enumerate(pairs):
        if (inserted := insert_placeholders(*pair, count, share, random.Random(first + row))) != pair:
            changed[row] = inserted
    for side, encode, texts in zip(sides, (tokenizer.encode, tokenizer.encode_targets), zip(*changed.values())):
        for row, ids in zip(changed, encode(texts)):
            side[row] = ids
    return sides


def examples_of(pairs, rows):
    """Return the first few pairs for which `rows`, bool `[pairs]`, is True, with texts shortened for a report."""
    return [[text[:EXAMPLE_CHARACTERS] for text in pairs[row]] for row in np.flatnonzero(rows)[:EXAMPLES]]


def _lengths(rows):
    """Return the number of ids in each row, including EOS, int32 `[rows]`."""
    return np.fromiter(map(len, rows), np.int32, len(rows)) + np.int32(1)


class ChunkWriter:
    """Context manager that encodes chunks of pairs and writes them atomically to `.npz` files.

    Args:
        tokenizer: `Tokenizer`.
        folder: Directory for the files. It must contain the saved tokenizer.
        workers: Number of worker processes; 0 to encode in this process (default: the number of cores, at most
            `MAX_WORKERS`).
        shard: (I, N) to write only the I-th of every N chunks of a split.
    """

    def __init__(self, tokenizer, folder, workers=None, shard=(1, 1)):
        self._tokenizer, self._folder, self._shard = tokenizer, folder, shard
        self._workers = min(usable_cores(), MAX_WORKERS) if workers is None else workers
        self._pairs = 0
        self._pool = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def write(self, split, pairs, pair_filter, noise=NO_NOISE):
        """Write the missing chunk files of a split, and yield one result per chunk, in order.

        Args:
            split: Name of the split.
            pairs: Iterable of pairs of texts.
            pair_filter: `PairFilter`.
            noise: `Noise`.

        Yields:
            (path of the file, number of pairs in the chunk, whether the file existed).

        Raises:
            UserError: The system killed a worker, possibly because memory ran out.
            Exception: Any exception from the iteration over pairs or from the tokenizer.
        """
        pending, first, (number, count) = collections.deque(), 0, self._shard
        try:
            for index, chunk in enumerate(cut_into_chunks(pairs)):
                here, first = first, first + len(chunk)
                if index % count != number - 1:
                    continue
                path = self._folder / f"{split}.{here:010}.{checksum(chunk):08x}.npz"
                exists = path.is_file()
                task = None if exists else self._submit(path, chunk, pair_filter, noise, here)
                pending.append((task, (path, len(chunk), exists)))
                while pending and (len(pending) >= 2 * self._workers or _is_done(pending[0][0])):
                    yield _result(*pending.popleft())
            while pending:
                yield _result(*pending.popleft())
        except BrokenProcessPool:
            raise UserError(
                "a process that encodes the corpus was killed, perhaps because memory ran out; rerun the command "
                "to resume"
            ) from None

    def _submit(self, path, chunk, *options):
        """Encode a chunk in this process and return None, or pass it to a worker and return its future."""
        self._pairs += len(chunk)
        if self._workers == 0 or self._pairs <= SERIAL_PAIRS:
            return write_chunk(path, self._tokenizer, chunk, *options)
        if not self._pool:
            self._pool = concurrent.futures.ProcessPoolExecutor(
                self._workers, multiprocessing.get_context("spawn"), _start_worker, (self._folder,)
            )
        # Hide `__main__` so that workers do not import it. The user's program may load Keras or have no main guard.
        with without_ctrl_c(), mock.patch.dict(sys.modules, {"__main__": types.ModuleType("__main__")}):
            return self._pool.submit(_write_chunk_in_worker, path, chunk, *options)


@contextlib.contextmanager
def without_ctrl_c():
    """Defer SIGINT (Ctrl-C) to the end of a `with` block. Processes that start inside the block ignore SIGINT."""
    multiprocessing.resource_tracker.ensure_running()  # first, because starting the tracker unblocks SIGINT
    received, handler = [], None
    if threading.current_thread() is threading.main_thread():
        # The mask below covers only this thread. If another thread gets SIGINT, Python runs the handler in this thread.
        handler = signal.signal(signal.SIGINT, lambda *_: received.append(True))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if received:
            signal.raise_signal(signal.SIGINT)


def _is_done(task):
    return task is None or task.done()


def _result(task, result):
    """Return `result` after `task` is done, or at once if `task` is None. Raise the exception of the task, if any."""
    if task:
        task.result()
    return result


def write_chunk(path, tokenizer, *arguments):
    """Write the arrays of `encode_pairs` to a file."""
    with atomic_open(path, "wb") as file:
        np.savez(file, **encode_pairs(tokenizer, *arguments))


def _write_chunk_in_worker(path, *arguments):
    write_chunk(path, _tokenizer, *arguments)


def _start_worker(folder):
    """Set up a worker process, which exits when its parent dies."""
    global _tokenizer
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _tokenizer = load_tokenizer(folder)


def _exit_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)
