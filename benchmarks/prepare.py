"""Measure the time and memory needed to prepare a large corpus.

    python benchmarks/prepare.py --pairs=5000000

The benchmark first writes a corpus of random words. Sentences have about 25 words on average, as in WMT, and word
frequencies follow Zipf's law. Memory is the peak resident memory of this process and its workers, sampled from /proc
ten times per second. The value is an upper bound, because a memory page that several processes share counts once for
each process. CPU seconds include this process and the workers that have ended. On a busy machine, CPU seconds are more
meaningful than wall-clock seconds.
"""

import argparse
import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from command_line import CORES, Parser, add_row, print_table

from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.cli.output import report
from keras_transformer.data.preparation import write_store
from keras_transformer.data.token_store import TokenStore
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.files import work_directory
from keras_transformer.utils.logs import terminal_log

RANKS = 2_000_000  # number of distinct words per language
ALPHABETS = {"en": ("bdfghklmnprstvwz", "aeiouy"), "de": ("bdfgklmnprstwzjq", "aeiouäöü")}


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument(
        "--pairs", type=positive_int, default=5_000_000, help="number of sentence pairs (default %(default)s)"
    )
    parser.add_argument("--vocab_size", type=positive_int, default=37_000, help="vocabulary size (default %(default)s)")
    parser.add_argument(
        "--workers", type=positive_int, help="number of worker processes (default: all cores, at most 8)"
    )
    parser.add_argument("--filters", action="store_true", help="set max_length_ratio=2 and drop_duplicates")
    parser.add_argument("--folder", help="folder that keeps the corpus for the next run (default: none)")
    parser.add_argument("--generate", metavar="LANGUAGE", help=argparse.SUPPRESS)
    flags = parser.parse_args(arguments)
    if flags.generate:
        return generate(Path(flags.folder), flags.generate, flags.pairs)
    with contextlib.ExitStack() as stack:
        folder = Path(flags.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        row = measure(folder, flags)
    print_table("preparation", [add_row(row, flags.json)])


def measure(folder, flags):
    """Prepare the corpus once and return the result row."""
    corpus = folder / f"{flags.pairs}"
    if not corpus.is_dir():
        report("writing the corpus")
        new = folder / "new"
        new.mkdir(parents=True)
        for language in ALPHABETS:  # separate processes, to exclude their memory from the measurements
            arguments = [f"--generate={language}", f"--folder={new}", f"--pairs={flags.pairs}"]
            subprocess.run([sys.executable, __file__, *arguments], check=True)
        os.replace(new, corpus)
    filters = {"max_length_ratio": 2.0, "drop_duplicates": True} if flags.filters else {}
    problem = load_problem("parallel_text", raw_dir=corpus, vocab_size=flags.vocab_size, **filters)
    phases = {}
    with phase(phases, "reading the text", flags.pairs):
        for _ in problem.pairs("train"):
            pass
    with phase(phases, "learning the vocabulary", flags.pairs):
        tokenizer = problem.make_tokenizer()
    store = folder / "store"
    with phase(phases, "encoding", flags.pairs), terminal_log():
        with work_directory(store, "benchmark") as work:
            write_store(
                work, {"train": problem.pairs("train")}, tokenizer, {}, filters=problem.filters,
                expected={"train": flags.pairs}, workers=flags.workers,
            )  # fmt: skip
            work.finish()
    counts = TokenStore(store).manifest["splits"]["train"]
    shutil.rmtree(store)
    return {
        "benchmark": "prepare", "cores": CORES, "workers": flags.workers, "filters": filters, "counts": counts,
        "phases": phases,
    }  # fmt: skip


@contextlib.contextmanager
def phase(phases, name, pairs):
    """Measure a `with` block and store the measurements in `phases` under `name`."""
    peak, ended = 0, threading.Event()

    def watch():
        nonlocal peak
        while not ended.wait(0.1):
            peak = max(peak, resident_bytes())

    thread = threading.Thread(target=watch)
    began, cpu = time.perf_counter(), cpu_seconds()
    thread.start()
    try:
        yield
    finally:
        ended.set()
        seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
        thread.join()
    phases[name] = {
        "seconds": seconds, "cpu_seconds": cpu, "pairs_per_second": pairs / seconds, "peak_bytes": peak,
    }  # fmt: skip


def cpu_seconds():
    """Return the CPU time of this process and of its children that have ended, in seconds."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def resident_bytes():
    """Return the resident memory of this process and its children in bytes."""
    total = 0
    children = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children"))
    for process in ("self", *children.split()):
        with contextlib.suppress(OSError):  # a child may have ended
            total += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
    return total


def generate(folder, language, count):
    """Write `count` training sentences of one language, and two validation sentences."""
    rng = np.random.default_rng(ord(language[0]))
    syllables = [consonant + vowel for consonant in ALPHABETS[language][0] for vowel in ALPHABETS[language][1]]
    words = [spell(rank, syllables) for rank in range(RANKS)]
    with open(folder / f"train.{language}", "w", encoding="utf-8") as file:
        for first in range(0, count, 10_000):
            lengths = np.maximum(1, rng.gamma(3, 8.3, min(10_000, count - first))).astype(int)
            ranks = np.exp(rng.random(lengths.sum()) * np.log(RANKS)).astype(int)  # probability ∝ 1 / rank
            ends = np.cumsum(lengths)
            for end, length in zip(ends.tolist(), lengths.tolist()):
                file.write(" ".join([words[rank - 1] for rank in ranks[end - length : end].tolist()]) + "\n")
    (folder / f"validation.{language}").write_text("a\nb\n")


def spell(rank, syllables):
    """Return the word with the given frequency rank. Frequent words are short."""
    word = ""
    while rank >= 0:
        rank, syllable = divmod(rank, len(syllables))
        word, rank = word + syllables[syllable], rank - 1
    return word


if __name__ == "__main__":
    run_command(main)
