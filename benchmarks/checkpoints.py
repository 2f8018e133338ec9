"""Measure the time to write a checkpoint, including fsync and checksums, and its share of the training time.

    python benchmarks/checkpoints.py --json=docs/results/checkpoints.jsonl

As in training, a checkpoint contains the weights, their moving average and the optimizer state. To compute the share,
the benchmark assumes the default checkpoint interval and updates of at most `--tokens` tokens per side. Most training
runs have larger updates, which take longer, so writing checkpoints takes a smaller share of their time.
"""

import tempfile
from pathlib import Path

import numpy as np
from command_line import Parser, add_row, median_seconds, print_table

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.config.hparams import HParams, load_hparams

VOCAB_SIZES = {"toy": 800, "tiny": 9_712, "base": 37_000, "big": 37_000}
LENGTH = 32


def main(arguments):
    parser = Parser(__doc__)
    parser.add_names("--sizes", VOCAB_SIZES, "toy,tiny,base")
    parser.add_argument(
        "--tokens", type=positive_int, default=2048, help="tokens per side of an update (default %(default)s)"
    )
    parser.add_argument(
        "--times", type=positive_int, default=5, help="number of timed writes and updates (default %(default)s)"
    )
    flags = parser.parse_args(arguments)
    load_keras()
    print_table("checkpoint_times", [add_row(measure(size, flags), flags.json) for size in flags.sizes])


def measure(size, flags):
    """Measure one model size and return its result row."""
    import keras_transformer as kt
    from keras_transformer.runs.checkpoint import Checkpoints, training_arrays

    hparams = load_hparams(size, ema_decay=0.999)
    model = kt.Transformer(VOCAB_SIZES[size], hparams)
    model.compile(**kt.compile_arguments(hparams))
    rows = min(flags.tokens, hparams.batch_tokens) // LENGTH
    ids = np.random.default_rng(0).integers(4, VOCAB_SIZES[size], (rows, LENGTH)).astype("int32")
    weights = np.full(ids.shape, 1 / ids.size, "float32")
    model.train_on_batch((ids, ids), ids, weights)  # trace the update before timing it
    update = median_seconds(lambda _: model.train_on_batch((ids, ids), ids, weights), flags.times)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        checkpoints = Checkpoints(folder)
        write = median_seconds(lambda step: checkpoints.save(step, training_arrays(model), {}), flags.times)
        written = sum(path.stat().st_size for path in (Path(folder) / "step-000000000").iterdir())
    steps = HParams().checkpoint_steps
    return {
        "benchmark": "checkpoints", "size": size, "parameters": model.count_params(), "megabytes": written / 1e6,
        "write_seconds": write, "update_seconds": update, "tokens": ids.size, "checkpoint_steps": steps,
        "share": write / (write + steps * update), "times": flags.times,
    }  # fmt: skip


if __name__ == "__main__":
    run_command(main)
