"""How an engine's process and the benchmark talk: a line on stdin is a repeat, a line of JSON on stdout its answer."""

import json
import os
import sys
import time


def serve(make):
    """Runs an engine until stdin ends.

    Args:
        make: Function of the job, `decode.Workload.job`, that loads the engine and returns a function that translates
            all sources once: ([ids of the best hypothesis, EOS left out, …], [its score, …]).
    """
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    # For libraries that do not ask how many threads they may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job["threads"]])
    translate = make(job)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        outputs, scores = translate()
        seconds = time.perf_counter() - began
        answer = {"seconds": seconds, "outputs": outputs, "scores": scores, "peak_memory_mb": peak_memory()}
        print(json.dumps(answer), file=answers, flush=True)


def peak_memory():
    """Returns the most memory, in MB of 10⁶ bytes, that was ever resident in this process; None without /proc."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 / 1e6 for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return None


def batches(sources, rows=64):
    """Yields lists of row numbers, of about the same length, longest first: what every engine translates at once."""
    order = sorted(range(len(sources)), key=lambda i: (-len(sources[i]), i))
    for first in range(0, len(order), rows):
        yield order[first : first + rows]
