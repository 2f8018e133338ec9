"""How an engine's process and the benchmark talk: a line on stdin is a repeat, a line of JSON on stdout its answer."""

import json
import os
import sys
import time


def serve(make):
    """Run an engine until stdin ends.

    Args:
        make: Function of the job, as `peers.Process` was given it, that loads the engine and returns a function that
            does what is timed, once, and returns what is to be told of it, a dictionary; "seconds" if not all of it
            counts.
    """
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    # For libraries that do not ask how many threads they may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job["threads"]])
    work = make(job)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        found = work()
        answer = {"seconds": time.perf_counter() - began, **found, "peak_memory_mb": peak_memory()}
        print(json.dumps(answer), file=answers, flush=True)


def trained(job, train):
    """Return the work of an engine that trains. Make the first update, and some more before any is timed.

    One comes before those of each turn: other engines have had theirs meanwhile, and the caches.

    Args:
        job: Its "updates" are those of a turn.
        train: Function that makes a number of updates, each with the next batch, and returns the last one's loss.
    """
    first = train(1)
    facts = {"seconds_to_first_step": time.time() - job["started"], "first_loss": first}
    if job["warm_updates"]:
        train(job["warm_updates"])

    def turn():
        train(1)
        began = time.perf_counter()
        loss = train(job["updates"])
        return {**facts, "seconds": time.perf_counter() - began, "loss": loss}

    return turn


def peak_memory():
    """Return the most memory, in MB of 10⁶ bytes, that was ever resident in this process; None without /proc."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 / 1e6 for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return None


def batches(sources, rows=64):
    """Yield lists of row numbers, of about the same length, longest first: what every engine translates at once."""
    order = sorted(range(len(sources)), key=lambda i: (-len(sources[i]), i))
    for first in range(0, len(order), rows):
        yield order[first : first + rows]


def bound_threads(number):
    """Has TensorFlow use so many threads; it must be told before it computes anything."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(number)
    tf.config.threading.set_inter_op_parallelism_threads(number)
