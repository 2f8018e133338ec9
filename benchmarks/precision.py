"""Whether fewer bits cost anything: `python benchmarks/precision.py --json=docs/results/precision.jsonl`.

Trains a problem with the training command once for every seed and precision, and compares the validation losses of the
last evaluation (label-smoothed cross-entropy and plain, in nats a token) to those of float32 with the same seed: same
initial weights, batches and dropout masks. Two seeds show how much of a difference is chance.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from command_line import Parser, add_row, check_flags, print_table

from keras_transformer.cli.arguments import run_command
from keras_transformer.cli.output import report
from keras_transformer.utils.errors import UserError


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--problem", default="toy_ende")
    parser.add_argument("--hparams", default="toy")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--precisions", nargs="+", default=["bfloat16"], choices=("bfloat16", "float16"))
    parser.add_argument("--train_steps", type=int, help="updates (default: the preset's)")
    parser.add_json()
    flags = parser.parse_args(arguments)
    check_flags(flags)
    rows = []
    for seed in flags.seeds:
        reference = None
        for precision in ["float32", *flags.precisions]:
            found = validation(flags, seed, precision)
            reference = reference or found
            rows.append(add_row({
                "benchmark": "precision", "problem": flags.problem, "hparams": flags.hparams, "seed": seed,
                "precision": precision, **found,
                "loss_over_float32": round(found["loss"] / reference["loss"], 5),
                "nll_over_float32": round(found["nll"] / reference["nll"], 5),
            }, flags.json))  # fmt: skip
            report(f"seed {seed} in {precision} is trained")
    print_table("precisions", rows)


def validation(flags, seed, precision):
    """Return the last evaluation of a new training: {"backend", "step", "loss", "nll", "score", "seconds"}."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        done = subprocess.run(
            [
                sys.executable, "-m", "keras_transformer.train", f"--problem={flags.problem}",
                f"--hparams={flags.hparams}", f"--seed={seed}", f"--precision={precision}", f"--output_dir={run}",
                *([f"--train_steps={flags.train_steps}"] if flags.train_steps else []),
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        if done.returncode:
            raise UserError(f"the training in {precision} failed: {(done.stderr.splitlines() or ['no word'])[-1]}")
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        backend = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["backend"]
    last = [row for row in rows if row["kind"] == "validation"][-1]
    seconds = sum(row["seconds"] for row in rows if row["kind"] == "train")
    return {
        "backend": backend,
        **{name: last[name] for name in ("step", "loss", "nll", "score")},
        "seconds": round(seconds),
    }


if __name__ == "__main__":
    run_command(main)
