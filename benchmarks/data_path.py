"""Cost of the data path: batch plans of large corpora, and tokens per second from the store to the training step.

    python benchmarks/data_path.py --pairs=1000000,36000000
    KERAS_BACKEND=jax python benchmarks/data_path.py --workloads=jax

Workloads:

- `plan`: open the plan of a corpus, make the first batch, cross into the second epoch, resume at later steps. The
  lengths are random, with the distribution of WMT.
- `assembly`: `TokenBatches` from a prepared corpus, without Keras.
- `tf_data`, `jax`: the same batches in Keras' `fit`, with a training step that does nothing.

Each workload runs in a process of its own. All times are CPU seconds of that process, so other load does not count.
Memory is the growth of the peak resident size after the imports.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from command_line import Parser, add_row, check_flags, names, number

from keras_transformer.cli.arguments import run_command

WORKLOADS = ("plan", "assembly", "tf_data", "jax")
STEPS = (10, 1_000_000)
"""Steps at which a run resumes."""
VOCAB_SIZE = 32_000
STORED_PAIRS = 200_000
"""Pairs of the prepared corpus from which batches are assembled."""


def main(arguments):
    parser = Parser(__doc__)
    default = "jax" if os.environ.get("KERAS_BACKEND") == "jax" else "plan,assembly,tf_data"
    parser.add_argument("--workloads", default=default, help="which to measure (default %(default)s)")
    parser.add_argument("--pairs", default="1000000", help="corpus sizes of the plans (default %(default)s)")
    parser.add_argument("--stored_pairs", type=number, default=STORED_PAIRS, help="pairs to assemble batches from")
    parser.add_argument("--batch_tokens", type=number, default=25_000, help="tokens per batch (default %(default)s)")
    parser.add_argument("--batches", type=number, default=300, help="batches to assemble (default %(default)s)")
    parser.add_json()
    parser.add_argument("--child", help=argparse.SUPPRESS)
    flags = parser.parse_args(arguments)
    check_flags(flags)
    if flags.child:
        print(json.dumps(globals()[flags.child](flags.json, flags)))
        return
    for workload in names("workload", flags.workloads, WORKLOADS):
        for pairs in [int(text) for text in flags.pairs.split(",")] if workload == "plan" else [flags.stored_pairs]:
            with tempfile.TemporaryDirectory() as folder:
                in_child("write_plan" if workload == "plan" else "write_store", folder, pairs, flags)
                figures = in_child(workload, folder, pairs, flags)
            record = {
                "benchmark": "data_path",
                "workload": workload,
                "pairs": pairs,
                "batch_tokens": flags.batch_tokens,
            }
            print(json.dumps(add_row({**record, **figures}, flags.json)))


def in_child(function, folder, pairs, flags):
    """Return what a function of this module returns in a process of its own."""
    shared = [f"--batch_tokens={flags.batch_tokens}", f"--batches={flags.batches}"]
    command = [sys.executable, __file__, f"--child={function}", f"--json={folder}/store", f"--stored_pairs={pairs}"]
    done = subprocess.run([*command, *shared], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# Run in child processes


def wmt_lengths(count):
    """Return int32 lengths `[2, count]` with the distribution of WMT's, block by block."""
    from engines.workload import wmt_lengths

    block = wmt_lengths(1_000_000).astype(np.int32)
    lengths = np.concatenate([block] * -(-count // block.shape[1]), axis=1)[:, :count]
    return lengths


def write_plan(path, flags):
    wmt_lengths(flags.stored_pairs).tofile(path)


def open_plan(path, flags):
    from keras_transformer.data.batch_plan import BatchPlan

    source, target = np.fromfile(path, np.int32).reshape(2, -1)
    return BatchPlan(source, target, flags.batch_tokens, seed=1)


def plan(path, flags):
    import keras_transformer.data.batch_plan  # noqa: F401

    before, figures = peak_memory(), {}
    with Cpu(figures, "open_seconds"):
        opened = open_plan(path, flags)
    with Cpu(figures, "first_batch_seconds"):
        opened.batch(0)
    opened.batch(opened.batches_per_epoch - 1)
    with Cpu(figures, "epoch_boundary_seconds"):
        opened.batch(opened.batches_per_epoch)
    figures["batches_per_epoch"] = opened.batches_per_epoch
    del opened
    for step in STEPS:
        with Cpu(figures, f"resume_at_{step}_seconds"):
            open_plan(path, flags).batch(step)
    return {**figures, "peak_memory_mb": peak_memory() - before}


def write_store(path, flags):
    from keras_transformer.data.token_store import TokenStore
    from keras_transformer.data.tokenizers.symbols import SymbolTokenizer

    random, symbols = np.random.default_rng(1), [f"s{i}" for i in range(VOCAB_SIZE)]

    def texts():
        for lengths in (wmt_lengths(flags.stored_pairs) - 1).T:
            yield tuple(" ".join(symbols[i] for i in random.integers(0, VOCAB_SIZE, length)) for length in lengths)

    TokenStore.write(path, {"train": texts()}, SymbolTokenizer(symbols), {})


def open_batches(path, flags):
    from keras_transformer.data.batch_plan import BatchPlan
    from keras_transformer.data.token_batches import TokenBatches
    from keras_transformer.data.token_store import TokenStore

    split = TokenStore(path).split("train")
    plan = BatchPlan(split.source.lengths, split.target.lengths, flags.batch_tokens, seed=1)
    return TokenBatches(split, plan)


def assembly(path, flags):
    from keras_transformer.data import token_batches  # noqa: F401

    before, figures = peak_memory(), {}
    with Cpu(figures, "open_seconds"):
        batches = open_batches(path, flags)
    with Cpu(figures, "first_batch_seconds"):
        batches[0]
    epoch = batches.batches_per_epoch
    with Cpu(figures, "first_epoch_seconds"):  # which reads each part of the corpus for the first time
        for index in range(1, epoch):
            batches[index]
    with Cpu(figures, "seconds"):
        for index in range(epoch, epoch + flags.batches):
            batches[index]
    return {**rates(batches, epoch, flags.batches, figures), "peak_memory_mb": peak_memory() - before}


def in_fit(path, flags):
    """Return the figures of Keras' `fit` with a step that does nothing, after an epoch that compiles it."""
    import keras

    from keras_transformer.backend.loading import load_keras

    load_keras()

    class NoStep(keras.Model):
        def call(self, inputs):
            return inputs

        def train_step(self, *state_and_data):
            logs = {"loss": keras.ops.zeros(())}
            return (logs, state_and_data[0]) if len(state_and_data) > 1 else logs

    before, figures = peak_memory(), {}
    with Cpu(figures, "open_seconds"):
        batches = open_batches(path, flags)
    model, epoch = NoStep(), batches.batches_per_epoch
    model.built = True
    model.compile(jit_compile=False if keras.backend.backend() == "tensorflow" else "auto")

    def fit(batches, steps):
        x = batches.as_dataset() if keras.backend.backend() == "tensorflow" else batches
        model.fit(x, steps_per_epoch=steps, epochs=1, verbose=0, shuffle=False)

    fit(batches, epoch)
    with Cpu(figures, "seconds"):
        fit(batches.replace(start=epoch), flags.batches)
    return {**rates(batches, epoch, flags.batches, figures), "peak_memory_mb": peak_memory() - before}


tf_data = jax = in_fit


def rates(batches, first, count, figures):
    """Return the figures with tokens per second instead of "seconds", those of `count` batches."""
    tokens = sum(batches.tokens(index) for index in range(first, first + count))
    return {**figures, "tokens_per_second": tokens / figures.pop("seconds")}


class Cpu:
    """Adds the CPU seconds of a `with` block to a dictionary."""

    def __init__(self, figures, name):
        self.figures, self.name = figures, name

    def __enter__(self):
        self.began = time.process_time()

    def __exit__(self, *exception):
        self.figures[self.name] = time.process_time() - self.began


def peak_memory():
    """Return the peak resident size of this process in MB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))


if __name__ == "__main__":
    run_command(main)
