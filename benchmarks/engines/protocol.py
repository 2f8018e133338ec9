"""Files and messages that the benchmarks exchange with engine processes. This module requires only NumPy.

An engine's script reads its job from a JSON file. When the script is ready, it writes a line of JSON to stdout. For
each line that arrives on stdin, the script makes one measurement and writes the result as a line of JSON.
"""

import json
import os
import sys
import time

import numpy as np

ARRAYS = ("source", "inputs", "labels")
SEEDS = "seed_generator_state"


def write_model(path, model):
    """Write a `Transformer` to an .npz file: vocabulary size, hparams, and variables except random generator states."""
    config = {"vocab_size": model.vocab_size, "hparams": model.get_config()["hparams"]}
    arrays = {name: np.asarray(variable, dtype="float32") for name, variable in variables_of(model)}
    np.savez(path, config=np.array(json.dumps(config)), **arrays)


def read_model(path):
    """Read a file written by `write_model`. Return (vocabulary size, dictionary of hparams, {name: weights}).

    Weights are loaded when they are first accessed.
    """
    weights = np.load(path)
    config = json.loads(str(weights["config"]))
    return config["vocab_size"], config["hparams"], weights


def variables_of(model):
    """Yield (name, variable). Names omit the model's name, as in "encoder/layer_1/self_attention/query"."""
    for variable in model.variables:
        if not variable.path.endswith(SEEDS):
            yield variable.path.partition("/")[2], variable


def write_batches(path, batches):
    """Write batches to one .npz file. Each batch is (source, decoder inputs, labels), int32 `[rows, length]`."""
    np.savez(path, **{f"{name}_{i}": array for i, batch in enumerate(batches) for name, array in zip(ARRAYS, batch)})


def read_batches(path):
    """Read a file written by `write_batches`. Return a list of (source, decoder inputs, labels)."""
    with np.load(path) as file:
        return [tuple(file[f"{name}_{i}"] for name in ARRAYS) for i in range(len(file.files) // len(ARRAYS))]


def learning_rate(hparams, step):
    """Return the learning rate for update `step` (equation 3 of the paper). The first update is step 1."""
    warm = hparams["warmup_steps"]
    return hparams["learning_rate_scale"] * hparams["d_model"] ** -0.5 * min(step**-0.5, step * warm**-1.5)


def sinusoids(length, d_model):
    """Return the paper's sinusoids (§3.5), float32 `[length, d_model]`. Sine and cosine of a frequency are adjacent."""
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, d_model).astype("float32")


def serve(**tasks):
    """Run an engine until stdin ends.

    Args:
        **tasks: For each task ("train", "decode", …), a function that takes the job, loads the engine, and returns a
            function without arguments. `serve` times each call of the returned function, whose result is a dictionary.
            If the dictionary has an entry "seconds", this entry replaces the measured time.
    """
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # redirect the output of libraries to stderr
    # Limit the number of CPUs, because some libraries have no option for the number of threads.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job["threads"]])
    work = tasks[job["task"]](job)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        found = work()
        answer = {"seconds": time.perf_counter() - began, **found, "peak_memory_mb": peak_memory()}
        print(json.dumps(answer), file=answers, flush=True)


def training(job, train):
    """Make the first update and the warm-up updates. Return a function that trains for one timed round.

    Each round starts with an untimed update, which refills the CPU caches after the rounds of other engines.

    Args:
        job: The job. "updates" is the number of updates per round.
        train: Function that takes a number of updates, trains on the next batches, and returns the last loss.
    """
    first = train(1)
    facts = {"seconds_to_first_step": time.time() - job["started"], "first_loss": first}
    if job["warm_updates"]:
        train(job["warm_updates"])

    def work():
        train(1)
        began = time.perf_counter()
        loss = train(job["updates"])
        return {**facts, "seconds": time.perf_counter() - began, "loss": loss}

    return work


def peak_memory():
    """Return the peak resident memory of this process in MB (10⁶ bytes), or None on systems without /proc."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 / 1e6 for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return None


def batches_of(sources, rows=64):
    """Yield the row indices of each batch. The first batch contains the longest sources, the last the shortest."""
    order = sorted(range(len(sources)), key=lambda i: (-len(sources[i]), i))
    for first in range(0, len(order), rows):
        yield order[first : first + rows]


def limit_threads(number):
    """Set TensorFlow's number of threads. This works only before TensorFlow runs its first operation."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(number)
    tf.config.threading.set_inter_op_parallelism_threads(number)
