"""Time of a checkpoint write, fsync and checksums included, and its share of training at the default interval.

    python benchmarks/checkpoints.py --sizes=toy,tiny,base --json=docs/results/checkpoints.jsonl

Weights, optimizer's state and a moving average are written as training writes them; the update beside it is of at most
`--tokens` source and target tokens, fewer than most trainings', so that the share is rather too high.
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from command_line import Parser, add_row, check_flags, print_table

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import run_command
from keras_transformer.config.hparams import HParams, load_hparams

VOCAB_SIZES = {"toy": 800, "tiny": 9_712, "base": 37_000, "big": 37_000}
LENGTH = 32


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--sizes", default="toy,tiny,base", help="comma-separated: " + ", ".join(VOCAB_SIZES))
    parser.add_argument(
        "--tokens", type=int, default=2048, help="most tokens a side of an update (default %(default)s)"
    )
    parser.add_argument("--times", type=int, default=5, help="writes, and updates (default %(default)s)")
    parser.add_json()
    flags = parser.parse_args(arguments)
    check_flags(flags)
    load_keras()
    rows = []
    for size in flags.sizes.split(","):
        rows.append(add_row(measure(size, flags), flags.json))
    print_table("checkpoint_times", rows)


def measure(size, flags):
    """Return the row of a size."""
    import keras_transformer as kt
    from keras_transformer.runs.checkpoint import Checkpoints, training_arrays

    hparams = load_hparams(size, ema_decay=0.999)
    model = kt.Transformer(VOCAB_SIZES[size], hparams)
    model.compile(**kt.compile_arguments(hparams))
    rows = min(flags.tokens, hparams.batch_tokens) // LENGTH
    ids = np.random.default_rng(0).integers(4, VOCAB_SIZES[size], (rows, LENGTH)).astype("int32")
    weights = np.full(ids.shape, 1 / ids.size, "float32")
    model.train_on_batch((ids, ids), ids, weights)  # traced
    update = timed(flags.times, lambda number: model.train_on_batch((ids, ids), ids, weights))
    with tempfile.TemporaryDirectory(dir=".") as folder:
        checkpoints = Checkpoints(folder)
        write = timed(flags.times, lambda number: checkpoints.save(number, training_arrays(model), {}))
        written = sum(path.stat().st_size for path in (Path(folder) / "step-000000000").iterdir())
    steps = HParams().checkpoint_steps
    return {
        "benchmark": "checkpoints", "size": size, "parameters": model.count_params(), "megabytes": written / 1e6,
        "write_seconds": write, "update_seconds": update, "tokens": ids.size, "checkpoint_steps": steps,
        "share": write / (write + steps * update), "times": flags.times,
    }  # fmt: skip


def timed(times, function):
    """Return the median seconds of calls with the numbers 0, 1, …"""
    seconds = []
    for number in range(times):
        began = time.monotonic()
        function(number)
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    run_command(main)
