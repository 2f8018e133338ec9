"""Measure the data path: batch plans of large corpora, and throughput from the prepared corpus to the training step.

    python benchmarks/data_path.py --pairs=1000000,36000000
    KERAS_BACKEND=jax python benchmarks/data_path.py --workloads=jax

Workloads:

- `plan`: time to open the batch plan of a corpus, make the first batch, start the second epoch, and resume at later
  steps. The lengths are random, with a distribution like that of WMT.
- `mixing`: share of padding, and probability that two pairs that share a batch do so again in the next epoch.
- `assembly`: speed of `TokenBatches` from a prepared corpus, without Keras.
- `tf_data`, `jax`: speed of Keras' `fit` with the batches of `assembly` and a training step that does nothing.

Each workload runs in a separate process. All times are CPU seconds of that process, so other programs hardly affect
them. Memory is the growth of the peak resident size after the imports, in MB.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from command_line import Parser, add_row, in_process, timed

import keras_transformer as kt
from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.data.batch_plan import BatchPlan
from keras_transformer.data.columns import Column, add_checksums, allocate_column
from keras_transformer.data.length_index import LengthIndex, group_lengths, order_type, write_index

sys.path.insert(0, str(Path(__file__).parent / "engines"))

WORKLOADS = ("plan", "mixing", "assembly", "tf_data", "jax")
STEPS = (10, 1_000_000)
"""Steps at which the workload `plan` resumes."""
MIXED = (2_048, 8_192, 25_000)
"""Values of `batch_tokens` for the workload `mixing`."""
VOCAB_SIZE = 32_000
SORTED_PAIRS = 100_000_000
"""Maximum number of pairs to sort. For a larger corpus, `write_plan` assumes that the pairs are already sorted."""


def main(arguments):
    parser = Parser(__doc__)
    default = "jax" if os.environ.get("KERAS_BACKEND") == "jax" else "plan,mixing,assembly,tf_data"
    parser.add_names("--workloads", WORKLOADS, default)
    parser.add_argument("--pairs", default="1000000", help="numbers of pairs for the plans (default %(default)s)")
    for name, default, summary in (
        ("--stored_pairs", 200_000, "pairs of the prepared corpus"),
        ("--batch_tokens", 25_000, "tokens per batch"),
        ("--batches", 300, "batches to assemble"),
    ):
        parser.add_argument(name, type=positive_int, default=default, help=f"{summary} (default %(default)s)")
    parser.add_argument("--max_shapes", default="24", help="maximum numbers of shapes for mixing (default %(default)s)")
    parser.add_corpus()
    flags = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for workload in flags.workloads:
            if workload == "mixing":
                runs = mixing_runs(folder, flags)
            elif workload == "plan":
                runs = plan_runs(folder, [int(text) for text in flags.pairs.split(",")], flags)
            else:
                runs = batch_runs(folder, assembly if workload == "assembly" else fit, flags)
            for row in runs:
                print(json.dumps(add_row({"benchmark": "data_path", "workload": workload, **row}, flags.json)))


def plan_runs(folder, sizes, flags):
    """Yield the result rows of the workload `plan`."""
    for pairs in sizes:
        in_process(write_plan, f"{folder}/{pairs}", pairs)
        figures = in_process(plan, f"{folder}/{pairs}", flags.batch_tokens)
        yield {"pairs": pairs, "batch_tokens": flags.batch_tokens, **figures}


def batch_runs(folder, function, flags):
    """Yield one result row with the measurements of `function`, which is `assembly` or `fit`."""
    path = Path(folder, "store")
    if not path.exists():
        in_process(write_store, path, flags.stored_pairs)
    figures = in_process(function, path, flags.batch_tokens, flags.batches)
    yield {"pairs": flags.stored_pairs, "batch_tokens": flags.batch_tokens, **figures}


def mixing_runs(folder, flags):
    """Yield the result rows of `mixing` for WMT-like lengths and, if `--raw_dir` is set, for Multi30k."""
    in_process(write_plan, f"{folder}/mixed", flags.stored_pairs)
    corpora = {"wmt": f"{folder}/mixed"}
    if flags.raw_dir:
        problem = kt.problem("multi30k_ende_tok", raw_dir=flags.raw_dir, data_dir=flags.data_dir).prepare()
        corpora["multi30k"] = f"{problem.prepared_dir}/train"
    for lengths, path in corpora.items():
        for batch_tokens in MIXED:
            for max_shapes in map(int, flags.max_shapes.split(",")):
                figures = in_process(mixing, path, batch_tokens, max_shapes)
                yield {"lengths": lengths, "batch_tokens": batch_tokens, "max_shapes": max_shapes, **figures}


def lengths_of(pairs):
    """Return WMT-like source and target lengths, int32 `[2, pairs]`, which repeat after a million pairs."""
    from workload import wmt_lengths

    block = wmt_lengths(1_000_000).astype(np.int32)
    return np.concatenate([block] * -(-pairs // block.shape[1]), axis=1)[:, :pairs]


def write_plan(path, pairs):
    """Write the `LengthIndex` of a corpus. Assume that a corpus of more than `SORTED_PAIRS` pairs is sorted."""
    if pairs <= SORTED_PAIRS:
        return write_index(path, *lengths_of(pairs))
    block = 1_000_000
    groups = group_lengths(*lengths_of(block))
    order = allocate_column(f"{path}.order", order_type(pairs), pairs)
    for first in range(0, pairs, block):
        order[first : first + block] = np.arange(first, min(first + block, pairs))
    order.flush()
    columns = np.concatenate([*groups[:2], groups[2] * (pairs // block)])
    allocate_column(f"{path}.groups", "int64", len(columns))[:] = columns
    return {**add_checksums(f"{path}.groups", "int64"), **add_checksums(f"{path}.order", order_type(pairs))}


def write_store(path, pairs):
    """Write a prepared corpus of random tokens."""
    from keras_transformer.data import preparation
    from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
    from keras_transformer.utils.files import work_directory

    random, symbols = np.random.default_rng(1), [f"s{i}" for i in range(VOCAB_SIZE)]

    def texts():
        for lengths in (lengths_of(pairs) - 1).T:
            yield tuple(" ".join(symbols[i] for i in random.integers(0, VOCAB_SIZE, length)) for length in lengths)

    with work_directory(path, "benchmark") as work:
        preparation.write_store(work, {"train": texts()}, SymbolTokenizer(symbols), {})
        work.finish()


def open_batches(path, batch_tokens):
    """Open a prepared corpus as `TokenBatches`."""
    from keras_transformer.data.token_batches import TokenBatches
    from keras_transformer.data.token_store import TokenStore

    split = TokenStore(path).split("train")
    return TokenBatches(split, BatchPlan(split.index, batch_tokens, seed=1))


def open_index(path):
    """Open the `LengthIndex` that `write_plan` has written."""
    return LengthIndex.from_columns(Column(f"{path}.groups", "int64"), Column(f"{path}.order", "uint32"))


def open_plan(path, batch_tokens):
    """Open the `BatchPlan` of a corpus."""
    return BatchPlan(open_index(path), batch_tokens, seed=1)


def plan(path, batch_tokens):
    """Measure the time that a `BatchPlan` takes to open, make batches and resume, and the memory that it uses."""
    from protocol import peak_memory

    before = peak_memory()
    opened, open_seconds = cpu_timed(open_plan, path, batch_tokens)
    epoch = opened.batches_per_epoch
    figures = {"open_seconds": open_seconds, "first_batch_seconds": cpu_timed(opened.batch, 0)[1]}
    opened.batch(epoch - 1)
    figures |= {"epoch_boundary_seconds": cpu_timed(opened.batch, epoch)[1], "batches_per_epoch": epoch}
    del opened
    for step in STEPS:
        figures[f"resume_at_{step}_seconds"] = cpu_timed(lambda step=step: open_plan(path, batch_tokens).batch(step))[1]
    return {**figures, "peak_memory_mb": peak_memory() - before}


def mixing(path, batch_tokens, max_shapes):
    """Measure the padding of a `BatchPlan`, and how often pairs that share a batch do so again in the next epoch."""
    index = open_index(path)
    opened = BatchPlan(index, batch_tokens, seed=1, max_shapes=max_shapes)
    count, padded = opened.batches_per_epoch, 0
    first, second = np.empty((2, opened.num_pairs), np.int64)
    for number in range(count):
        batch = opened.batch(number)
        first[batch.rows], second[opened.batch(count + number).rows] = number, number
        padded += len(batch.rows) * (batch.source_length + batch.target_length)
    again, together = (np.unique(key, return_counts=True)[1] for key in (first * count + second, first))
    return {
        "pairs": opened.num_pairs,
        "batches_per_epoch": count,
        "real_share_longest": float(index.size @ (index.source + index.target) / padded),
        "real_share_shapes": opened.real_share("shape"),
        "share_that_meets_again": float(again @ (again - 1) / (together @ (together - 1))),
    }


def assembly(path, batch_tokens, count):
    """Measure the time that `TokenBatches` take for the first epoch, and their speed in the next `count` batches."""
    from protocol import peak_memory

    from keras_transformer.data import token_batches  # noqa: F401

    before = peak_memory()
    batches, open_seconds = cpu_timed(open_batches, path, batch_tokens)

    def make(first, end):
        for index in range(first, end):
            batches[index]

    epoch = batches.batches_per_epoch
    figures = {"open_seconds": open_seconds, "first_batch_seconds": cpu_timed(make, 0, 1)[1]}
    figures["first_epoch_seconds"] = cpu_timed(make, 1, epoch)[1]  # the first epoch reads the corpus from disk
    seconds = cpu_timed(make, epoch, epoch + count)[1]
    return {**figures, **rates(batches, count, seconds), "peak_memory_mb": peak_memory() - before}


def fit(path, batch_tokens, count):
    """Measure the speed of `fit`, with a training step that does nothing, for `count` batches after the first epoch."""
    import keras
    from protocol import peak_memory

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

    run(batches, batches.batches_per_epoch)  # so that the timing excludes compilation
    seconds = cpu_timed(run, batches.replace(start=batches.batches_per_epoch), count)[1]
    return {"open_seconds": open_seconds, **rates(batches, count, seconds), "peak_memory_mb": peak_memory() - before}


def rates(batches, count, seconds):
    """Return {"tokens_per_second": rate}, given the `seconds` for reading `count` batches after the first epoch."""
    first = batches.batches_per_epoch
    return {"tokens_per_second": sum(batches.tokens(index) for index in range(first, first + count)) / seconds}


def cpu_timed(function, *arguments):
    """Call a function and return (result, CPU seconds)."""
    return timed(function, *arguments, clock=time.process_time)


if __name__ == "__main__":
    run_command(main)
