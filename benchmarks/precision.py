"""Measure the effect of lower precision on validation losses and scores.

    python benchmarks/precision.py --json=docs/results/precision.jsonl

The benchmark trains a model for each seed and precision. It compares the last validation of each run with that of the
float32 run with the same seed, which has the same initial weights, batches and dropout masks. "loss" is the
label-smoothed and "nll" the plain cross-entropy in nats per token. The difference between seeds shows the size of
random effects.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from command_line import Parser, add_row, print_table

from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.cli.output import report
from keras_transformer.utils.errors import UserError


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--problem", default="toy_ende", help="registered problem (default %(default)s)")
    parser.add_argument("--hparams", default="toy", help="preset (default %(default)s)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--precisions", nargs="+", default=["bfloat16"], choices=("bfloat16", "float16"))
    parser.add_argument("--train_steps", type=positive_int, help="number of updates (default the preset's)")
    flags = parser.parse_args(arguments)
    rows = []
    for seed in flags.seeds:
        reference = None
        for precision in ["float32", *flags.precisions]:
            found = last_validation(flags, seed, precision)
            reference = reference or found
            rows.append(add_row({
                "benchmark": "precision", "problem": flags.problem, "hparams": flags.hparams, "seed": seed,
                "precision": precision, **found,
                "loss_over_float32": round(found["loss"] / reference["loss"], 5),
                "nll_over_float32": round(found["nll"] / reference["nll"], 5),
            }, flags.json))  # fmt: skip
            report(f"trained seed {seed} in {precision}")
    print_table("precisions", rows)


def last_validation(flags, seed, precision):
    """Train a model. Return a dictionary with "backend", "seconds" (training time) and values of the last validation.

    The values are "step", "loss", "nll" and "score".
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        settings = {
            "problem": flags.problem, "hparams": flags.hparams, "seed": seed, "precision": precision, "output_dir": run,
            **({"train_steps": flags.train_steps} if flags.train_steps else {}),
        }  # fmt: skip
        command = [sys.executable, "-m", "keras_transformer.train", *(f"--{name}={v}" for name, v in settings.items())]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise UserError(f"training in {precision} failed: {(done.stderr.splitlines() or ['no output'])[-1]}")
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        backend = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["backend"]
    last = [row for row in rows if row["kind"] == "validation"][-1]
    return {
        "backend": backend, **{name: last[name] for name in ("step", "loss", "nll", "score")},
        "seconds": round(sum(row["seconds"] for row in rows if row["kind"] == "train")),
    }  # fmt: skip


if __name__ == "__main__":
    run_command(main)
