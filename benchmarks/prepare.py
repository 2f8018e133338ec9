"""Speed and memory of preparing a large corpus: pairs a second, aside from the learning of the vocabulary.

    python benchmarks/prepare.py --pairs=5000000

Random words by Zipf's law, about 25 a sentence as in WMT, are written to two files before anything is timed. Memory is
the most of what /proc gives as resident, of this process and its workers together, ten times a second; pages that they
share count for each, so it is an upper bound. CPU seconds (`resource.getrusage`) are those of this process
(RUSAGE_SELF) and of the workers, when they have ended (RUSAGE_CHILDREN): on a busy machine they say more than the
clock does.
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
from command_line import Parser, add_row, check_flags, number, print_table

from keras_transformer.cli.arguments import run_command
from keras_transformer.data.token_store import TokenStore
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.logs import terminal_log

RANKS = 2_000_000  # different words of a language
ALPHABETS = {"en": ("bdfghklmnprstvwz", "aeiouy"), "de": ("bdfgklmnprstwzjq", "aeiouäöü")}


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--pairs", type=number, default=5_000_000, help="pairs to prepare (default %(default)s)")
    parser.add_argument("--vocab_size", type=int, default=37_000, help="pieces to learn (default %(default)s)")
    parser.add_argument("--workers", type=int, help="worker processes (default: all cores, at most 8)")
    parser.add_argument("--filters", action="store_true", help="with max_length_ratio=2 and drop_duplicates")
    parser.add_argument("--folder", help="where the corpus is kept for the next time (default: nowhere)")
    parser.add_json()
    parser.add_argument("--generate", metavar="LANGUAGE", help=argparse.SUPPRESS)
    flags = parser.parse_args(arguments)
    check_flags(flags)
    if flags.generate:
        return generate(Path(flags.folder), flags.generate, flags.pairs)
    with contextlib.ExitStack() as stack:
        folder = Path(flags.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        record = measure(folder, flags)
    print_table("preparation", [add_row(record, flags.json)])


def measure(folder, flags):
    """Return the record of one preparation."""
    corpus = folder / f"{flags.pairs}"
    if not corpus.is_dir():
        print("writing the corpus")
        new = folder / "new"
        new.mkdir(parents=True)
        for language in ALPHABETS:  # in another process, whose memory is not ours
            arguments = [f"--generate={language}", f"--folder={new}", f"--pairs={flags.pairs}"]
            subprocess.run([sys.executable, __file__, *arguments], check=True)
        os.replace(new, corpus)
    filters = {"max_length_ratio": 2.0, "drop_duplicates": True} if flags.filters else {}
    problem = load_problem("parallel_text", raw_dir=corpus, vocab_size=flags.vocab_size, **filters)
    phases = {}
    with Phase(phases, "reading the text", flags.pairs):
        for _ in problem.pairs("train"):
            pass
    with Phase(phases, "learning the vocabulary", flags.pairs):
        tokenizer = problem.make_tokenizer()
    store = folder / "store"
    with Phase(phases, "encoding", flags.pairs), terminal_log():
        TokenStore.write(
            store, {"train": problem.pairs("train")}, tokenizer, {}, filters=problem.filters,
            expected={"train": flags.pairs}, workers=flags.workers,
        )  # fmt: skip
    counts = TokenStore(store).manifest["splits"]["train"]
    shutil.rmtree(store)
    cores = len(os.sched_getaffinity(0))
    return {
        "benchmark": "prepare", "cores": cores, "workers": flags.workers, "filters": filters, "counts": counts,
        "phases": phases,
    }  # fmt: skip


class Phase:
    """Measurement of a `with` block, which adds {name: figures} to `phases`."""

    def __init__(self, phases, name, pairs):
        self.phases, self.name, self.pairs, self.peak = phases, name, pairs, 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def __enter__(self):
        self.began, self.cpu = time.perf_counter(), cpu_seconds()
        self.thread.start()

    def __exit__(self, *exception):
        seconds, cpu = time.perf_counter() - self.began, cpu_seconds() - self.cpu
        self.ended.set()
        self.thread.join()
        self.phases[self.name] = {
            "seconds": seconds, "cpu_seconds": cpu, "pairs_per_second": self.pairs / seconds, "peak_bytes": self.peak,
        }  # fmt: skip

    def watch(self):
        while not self.ended.wait(0.1):
            self.peak = max(self.peak, resident_bytes())


def cpu_seconds():
    """User and system time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def resident_bytes():
    """Resident memory of this process and its children."""
    total = 0
    children = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children"))
    for process in ("self", *children.split()):
        with contextlib.suppress(OSError):  # it has ended
            total += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
    return total


def generate(folder, language, count):
    """Write `count` sentences of one language, and two for validation."""
    rng = np.random.default_rng(ord(language[0]))
    syllables = [consonant + vowel for consonant in ALPHABETS[language][0] for vowel in ALPHABETS[language][1]]
    words = [spell(rank, syllables) for rank in range(RANKS)]
    with open(folder / f"train.{language}", "w", encoding="utf-8") as file:
        for first in range(0, count, 10_000):
            lengths = np.maximum(1, rng.gamma(3, 8.3, min(10_000, count - first))).astype(int)
            ranks = np.exp(rng.random(lengths.sum()) * np.log(RANKS)).astype(int)  # the rank's chance is 1/rank
            ends = np.cumsum(lengths)
            for end, length in zip(ends.tolist(), lengths.tolist()):
                file.write(" ".join([words[rank - 1] for rank in ranks[end - length : end].tolist()]) + "\n")
    (folder / f"validation.{language}").write_text("a\nb\n")


def spell(rank, syllables):
    """Return a word, short if it is frequent."""
    word = ""
    while rank >= 0:
        rank, syllable = divmod(rank, len(syllables))
        word, rank = word + syllables[syllable], rank - 1
    return word


if __name__ == "__main__":
    run_command(main)
