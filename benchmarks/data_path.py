"""Cost of the data path: batch plans of large corpora, and tokens per second from the store to the training step.

    python benchmarks/data_path.py --pairs=1000000,36000000
    KERAS_BACKEND=jax python benchmarks/data_path.py --workloads=jax

Workloads:

- `plan`: open the plan of a corpus, make the first batch, cross into the second epoch, resume at later steps. The
  lengths are random, with the distribution of WMT.
- `assembly`: `TokenBatches` from a prepared corpus, without Keras.
- `tf_data`, `jax`: the same batches in Keras' `fit`, with a training step that does nothing.

Each workload runs in a process of its own. All times are CPU seconds of that process, so other load does not count.
Memory is the growth of the peak resident size after the imports, in MB.
"""

import concurrent.futures
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from command_line import Parser, add_row, timed

from keras_transformer.cli.arguments import positive_int, run_command

sys.path.insert(0, str(Path(__file__).parent / "engines"))

WORKLOADS = ("plan", "assembly", "tf_data", "jax")
STEPS = (10, 1_000_000)
"""Steps at which a run resumes."""
VOCAB_SIZE = 32_000


def main(arguments):
    parser = Parser(__doc__)
    default = "jax" if os.environ.get("KERAS_BACKEND") == "jax" else "plan,assembly,tf_data"
    parser.add_names("--workloads", WORKLOADS, default)
    parser.add_argument("--pairs", default="1000000", help="corpus sizes of the plans (default %(default)s)")
    for name, default, summary in (
        ("--stored_pairs", 200_000, "pairs of the prepared corpus"),
        ("--batch_tokens", 25_000, "tokens per batch"),
        ("--batches", 300, "batches to assemble"),
    ):
        parser.add_argument(name, type=positive_int, default=default, help=f"{summary} (default %(default)s)")
    flags = parser.parse_args(arguments)
    plans = [(plan, int(text)) for text in flags.pairs.split(",")]
    functions = {"plan": plans, "assembly": [(assembly, flags.stored_pairs)]}
    for workload in flags.workloads:
        for function, pairs in functions.get(workload, [(fit, flags.stored_pairs)]):
            with tempfile.TemporaryDirectory() as folder:
                path = f"{folder}/store"
                in_process(write_lengths if function is plan else write_store, path, pairs)
                figures = in_process(function, path, flags.batch_tokens, flags.batches)
            row = {"benchmark": "data_path", "workload": workload, "pairs": pairs, "batch_tokens": flags.batch_tokens}
            print(json.dumps(add_row({**row, **figures}, flags.json)))


def in_process(function, *arguments):
    """Return the result of a function in a process of its own."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def lengths_of(pairs):
    """Return int32 lengths `[2, pairs]` with the distribution of WMT, in blocks of a million pairs."""
    from workload import wmt_lengths

    block = wmt_lengths(1_000_000).astype(np.int32)
    return np.concatenate([block] * -(-pairs // block.shape[1]), axis=1)[:, :pairs]


def write_lengths(path, pairs):
    lengths_of(pairs).tofile(path)


def write_store(path, pairs):
    """Write a prepared corpus of random tokens."""
    from keras_transformer.data.token_store import TokenStore
    from keras_transformer.data.tokenizers.symbols import SymbolTokenizer

    random, symbols = np.random.default_rng(1), [f"s{i}" for i in range(VOCAB_SIZE)]

    def texts():
        for lengths in (lengths_of(pairs) - 1).T:
            yield tuple(" ".join(symbols[i] for i in random.integers(0, VOCAB_SIZE, length)) for length in lengths)

    TokenStore.write(path, {"train": texts()}, SymbolTokenizer(symbols), {})


def open_batches(path, batch_tokens):
    """Return the `TokenBatches` of a prepared corpus."""
    from keras_transformer.data.batch_plan import BatchPlan
    from keras_transformer.data.token_batches import TokenBatches
    from keras_transformer.data.token_store import TokenStore

    split = TokenStore(path).split("train")
    return TokenBatches(split, BatchPlan(split.source.lengths, split.target.lengths, batch_tokens, seed=1))


def plan(path, batch_tokens, _):
    """Return the figures of a `BatchPlan`."""
    from keras_transformer.data.batch_plan import BatchPlan

    def open_plan():
        return BatchPlan(*np.fromfile(path, np.int32).reshape(2, -1), batch_tokens, seed=1)

    before = peak_memory()
    opened, open_seconds = cpu_timed(open_plan)
    epoch = opened.batches_per_epoch
    figures = {"open_seconds": open_seconds, "first_batch_seconds": cpu_timed(opened.batch, 0)[1]}
    opened.batch(epoch - 1)
    figures |= {"epoch_boundary_seconds": cpu_timed(opened.batch, epoch)[1], "batches_per_epoch": epoch}
    del opened
    for step in STEPS:
        figures[f"resume_at_{step}_seconds"] = cpu_timed(lambda step=step: open_plan().batch(step))[1]
    return {**figures, "peak_memory_mb": peak_memory() - before}


def assembly(path, batch_tokens, count):
    """Return the figures of `TokenBatches`, for `count` batches after the first epoch."""
    from keras_transformer.data import token_batches  # noqa: F401

    before = peak_memory()
    batches, open_seconds = cpu_timed(open_batches, path, batch_tokens)

    def make(first, end):
        for index in range(first, end):
            batches[index]

    epoch = batches.batches_per_epoch
    figures = {"open_seconds": open_seconds, "first_batch_seconds": cpu_timed(make, 0, 1)[1]}
    figures["first_epoch_seconds"] = cpu_timed(make, 1, epoch)[1]  # reads the corpus for the first time
    seconds = cpu_timed(make, epoch, epoch + count)[1]
    return {**figures, **rates(batches, count, seconds), "peak_memory_mb": peak_memory() - before}


def fit(path, batch_tokens, count):
    """Return the figures of Keras' `fit` with an empty training step, for `count` batches after the first epoch."""
    import keras

    from keras_transformer.backend.loading import load_keras

    load_keras()
    on_tensorflow = keras.backend.backend() == "tensorflow"

    class NoStep(keras.Model):
        def call(self, inputs):
            return inputs

        def train_step(self, *state_and_data):
            logs = {"loss": keras.ops.zeros(())}
            return (logs, state_and_data[0]) if len(state_and_data) > 1 else logs

    before = peak_memory()
    batches, open_seconds = cpu_timed(open_batches, path, batch_tokens)
    model = NoStep()
    model.built = True
    model.compile(jit_compile=False if on_tensorflow else "auto")

    def run(batches, steps):
        data = batches.as_dataset() if on_tensorflow else batches
        model.fit(data, steps_per_epoch=steps, epochs=1, verbose=0, shuffle=False)

    run(batches, batches.batches_per_epoch)  # compiles
    seconds = cpu_timed(run, batches.replace(start=batches.batches_per_epoch), count)[1]
    return {"open_seconds": open_seconds, **rates(batches, count, seconds), "peak_memory_mb": peak_memory() - before}


def rates(batches, count, seconds):
    """Return {"tokens_per_second"} of `count` batches after the first epoch."""
    first = batches.batches_per_epoch
    return {"tokens_per_second": sum(batches.tokens(index) for index in range(first, first + count)) / seconds}


def cpu_timed(function, *arguments):
    """Return (result, CPU seconds) of a call."""
    return timed(function, *arguments, clock=time.process_time)


def peak_memory():
    """Return the peak resident size of this process in MB."""
    from protocol import peak_memory

    return peak_memory()


if __name__ == "__main__":
    run_command(main)
