"""Measure compile times on JAX: the time to the first and to the last update, with a cold and a warm compilation cache.

    KERAS_BACKEND=jax python benchmarks/compilation.py --hparams=toy,base

Each row of the output comes from a new process, which trains on the built-in problem `toy_ende`. The process neither
evaluates nor writes a checkpoint before the last update. "cold" starts with an empty compilation cache, and "warm"
starts with the cache of the cold run. `cpu_seconds` is the CPU time of all threads, which other programs hardly affect.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from command_line import Parser, add_row

from keras_transformer.cli.arguments import positive_int, run_command

CHILD = """
import json, sys, time
settings = json.loads(sys.argv[1])
import keras_transformer as kt
from keras_transformer.training.callbacks import base
from keras_transformer.training.options import TrainOptions
from keras_transformer.training.trainer import train_model
times, original = [], base.StepCallbacks.on_train_batch_end
def on_train_batch_end(self, *arguments):
    times.append(time.monotonic())
    original(self, *arguments)
base.StepCallbacks.on_train_batch_end = on_train_batch_end
updates = settings["updates"]
changes = {"train_steps": updates, "eval_steps": 10 * updates, "best_metric": "nll", **settings["changes"]}
hparams = kt.hparams(settings["hparams"], **changes)
problem = kt.problem("toy_ende", data_dir=settings["data_dir"]).prepare()
began, cpu = time.monotonic(), time.process_time()
train_model(problem, hparams, settings["run"], TrainOptions(precision=settings["precision"]))
shapes = len(problem.batches("train", hparams).shapes(updates))
figures = {"first_update_seconds": times[0] - began, "all_updates_seconds": times[-1] - began}
print("figures", json.dumps({"shapes": shapes, **figures, "cpu_seconds": time.process_time() - cpu}))
"""


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--hparams", default="toy", help="presets, separated by commas (default %(default)s)")
    parser.add_argument("--updates", type=positive_int, default=100, help="number of updates (default %(default)s)")
    parser.add_argument(
        "--batch_tokens", type=positive_int, help="tokens per batch (default: batch_tokens of the preset)"
    )
    parser.add_argument(
        "--max_shapes", type=positive_int, help="maximum number of batch shapes (default: max_shapes of the preset)"
    )
    parser.add_argument("--precision", default="float32", help="data type of matrix products (default %(default)s)")
    flags = parser.parse_args(arguments)
    given = {name: value for name in ("batch_tokens", "max_shapes") if (value := getattr(flags, name))}
    for hparams in flags.hparams.split(","):
        with tempfile.TemporaryDirectory() as folder:
            for cache in ("cold", "warm"):
                settings = {
                    "hparams": hparams, "updates": flags.updates, "precision": flags.precision, "changes": given,
                    "data_dir": f"{folder}/data", "run": f"{folder}/{cache}",
                }  # fmt: skip
                figures = train(settings, Path(folder, "cache"))
                row = {
                    "benchmark": "compilation",
                    "hparams": hparams,
                    "cache": cache,
                    "updates": flags.updates,
                    **given,
                }
                print(json.dumps(add_row({**row, "precision": flags.precision, **figures}, flags.json)))


def train(settings, cache):
    """Train in a separate process with its compilation cache in the folder `cache`. Return the measurements."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_COMPILATION_CACHE_DIR": str(cache)}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"  # the value from `backend.loading`
    child = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(settings)],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    print(child.stdout, end="", file=sys.stderr)
    return json.loads(child.stdout.rpartition("figures ")[2])


if __name__ == "__main__":
    run_command(main)
