"""Pairs of texts to columns of ids, a chunk at a time, in this process or in several worker processes.

A worker is a new interpreter that imports this module and no more, whatever the parent has loaded: neither Keras nor
the user's program, which a worker of `multiprocessing` would run again. It ends with its stdin, and so with its parent.
"""

import collections
import concurrent.futures
import itertools
import os
import pickle
import queue
import subprocess
import sys
import traceback
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_transformer.data.filters import hash_pairs
from keras_transformer.data.tokenizers.base import EOS
from keras_transformer.data.tokenizers.loading import load_tokenizer
from keras_transformer.utils.errors import UserError

CHUNK_PAIRS, CHUNK_CHARACTERS = 5_000, 4_000_000
SERIAL_PAIRS = 50_000  # as many are encoded here before workers are started
MOST_WORKERS = 8  # beyond that this process, which reads the corpus, is the slower one; and each takes about 0.1 GB


class Encoded(NamedTuple):
    """A chunk of pairs as ids.

    Attributes:
        pairs: Pairs in the chunk, before any was left out.
        checksum: CRC-32 of their texts.
        columns: {name: bytes}, for each side `SIDE.ids`, each row ending with EOS, and `SIDE.lengths`, int32; and
            `hashes` of the pairs of texts, uint64.
        empty: Number of pairs dropped because a side is empty.
    """

    pairs: int
    checksum: int
    columns: dict
    empty: int


def id_type(tokenizer):
    """Returns the NumPy type that a tokenizer's ids are kept in."""
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)


def cut_into_chunks(pairs):
    """Yields lists of pairs: always the same of the same pairs, and none of them large."""
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
    """Returns the CRC-32 of the texts of pairs."""
    return zlib.crc32("\0".join(itertools.chain.from_iterable(pairs)).encode("utf-8", "surrogatepass"))


def encode_pairs(tokenizer, pairs, pair_filter, bpe_dropout=0.0, first=0):
    """Return a list of pairs of texts as `Encoded`, without those that `pair_filter` drops by their lengths.

    Args:
        tokenizer: `Tokenizer`.
        pairs: List of pairs of texts.
        pair_filter: `PairFilter`.
        bpe_dropout: Share of joints that are left out where texts are cut into pieces.
        first: The number of the first pair in its split, on which depends which.
    """
    count, found = len(pairs), checksum(pairs)
    sources, targets = zip(*pairs)
    sides = [tokenizer.encode(sources), tokenizer.encode_targets(targets)]
    lengths = [*map(_lengths, sides)]  # of the tokenizer's own pieces, so that no draw decides
    empty = pair_filter.empty(*lengths)
    keep = pair_filter.alike(*lengths) & ~empty
    if not keep.all():
        pairs, *sides = (list(itertools.compress(rows, keep)) for rows in (pairs, *sides))
    if bpe_dropout:
        sides = [tokenizer.resegment(side, bpe_dropout, 2 * first + number) for number, side in enumerate(sides)]
    columns = {}
    for name, side in zip(("source", "target"), sides):
        length = _lengths(side)
        ends = np.cumsum(length)
        ids = np.full(length.sum(), EOS, id_type(tokenizer))
        inside = np.full(len(ids), True)
        inside[ends - 1] = False
        ids[inside] = np.fromiter(itertools.chain.from_iterable(side), ids.dtype, len(ids) - len(ends))
        columns |= {f"{name}.ids": ids.tobytes(), f"{name}.lengths": length.tobytes()}
    columns["hashes"] = hash_pairs(pairs).tobytes()
    return Encoded(count, found, columns, int(empty.sum()))


def _lengths(rows):
    """Returns int32 `[rows]`, the number of ids in each with EOS."""
    return np.fromiter(map(len, rows), np.int32, len(rows)) + np.int32(1)


class Encoders:
    """Encodes chunks of pairs; a context manager that ends the worker processes.

    Args:
        tokenizer: `Tokenizer`.
        folder: Where it is saved; the workers load it from there.
        workers: Number of worker processes; 0: encode in this process; by default all cores, at most `MOST_WORKERS`.
    """

    def __init__(self, tokenizer, folder, workers=None):
        self._tokenizer, self._folder = tokenizer, folder
        self._count = min(_cores(), MOST_WORKERS) if workers is None else workers
        self._processes, self._idle, self._threads = [], queue.SimpleQueue(), None
        self._pairs = 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self._processes:
            process.kill()
        if self._threads:
            self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.wait()
            process.stdout.close()
            try:
                process.stdin.close()
            except BrokenPipeError:  # half a chunk was in its buffer
                pass

    def encode(self, chunks, pair_filter, bpe_dropout=0.0, first=0):
        """Yields the `Encoded` of each chunk, in order; at most two for each worker are under way.

        Args:
            chunks: Iterable of lists of pairs.
            pair_filter: `PairFilter`.
            bpe_dropout: As for `encode_pairs`.
            first: The number in its split of the first pair of all.

        Raises:
            UserError: A worker was ended, perhaps for lack of memory.
            RuntimeError: One raised an exception.
        """
        pending = collections.deque()
        for chunk in chunks:
            self._pairs += len(chunk)
            question = chunk, pair_filter, bpe_dropout, first
            first += len(chunk)
            if self._count == 0 or self._pairs <= SERIAL_PAIRS:
                yield encode_pairs(self._tokenizer, *question)
                continue
            if not self._processes:
                self._start()
            pending.append(self._threads.submit(self._ask, question))
            while len(pending) >= 2 * self._count or (pending and pending[0].done()):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _start(self):
        path = [os.path.abspath(entry) for entry in sys.path] + [str(Path(__file__).parents[2])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OPENBLAS_NUM_THREADS": "1"}
        for _ in range(self._count):
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {__name__} import answer; answer()", str(self._folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
                process_group=0,  # Ctrl-C goes to the parent alone, which ends them
            )  # fmt: skip
            self._processes.append(process)
            self._idle.put(process)
        self._threads = concurrent.futures.ThreadPoolExecutor(self._count)  # each waits for a worker's answer

    def _ask(self, question):
        process = self._idle.get()
        try:
            pickle.dump(question, process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            answer = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise UserError(
                f"a process that encodes the corpus was ended (status {process.wait()}), perhaps for lack of memory; "
                "run the command again, it goes on from there"
            ) from None
        finally:
            self._idle.put(process)
        if isinstance(answer, str):
            raise RuntimeError(f"in a process that encodes the corpus:\n{answer}")
        return answer


def _cores():
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def answer():
    """The worker: answers chunks of pairs on stdin with `Encoded`, or the text of an exception, on stdout."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may come between the answers
    tokenizer = load_tokenizer(sys.argv[1])
    while True:
        try:
            question = pickle.load(sys.stdin.buffer)
        except (EOFError, pickle.UnpicklingError):
            return
        try:
            encoded = encode_pairs(tokenizer, *question)
        except Exception:
            encoded = traceback.format_exc()
        try:
            pickle.dump(encoded, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # nobody is left to hear of it
