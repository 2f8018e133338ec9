"""Kill a training run repeatedly at random moments and compare the result with an uninterrupted run.

    python tests/slow/soak.py --kills=50 --json=docs/results/reliability.jsonl

Every fourth signal is SIGTERM, and the others are SIGKILL. After each start of the run, the program waits for a new
checkpoint and then for a random time before it sends a signal. Every third signal comes during a checkpoint write.
The program exits with status 1 if it sends fewer signals than requested, or if the weights, the optimizer state or the
best checkpoint differ from those of the uninterrupted run.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from keras_transformer.cli.arguments import run_command
from keras_transformer.cli.output import report
from keras_transformer.runs.checkpoint import Checkpoints
from keras_transformer.runs.provenance import append_row, command, git_revision
from keras_transformer.runs.run import Run
from keras_transformer.utils.machine import describe_machine

CHECKPOINT_STEPS = 10
WRITE = 0.03
"""Maximum time in seconds from the start of a checkpoint write to the signal. A write takes slightly longer."""


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="number of kills (default %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 10**6, help="seed of the random moments (default: from the time)"
    )
    parser.add_argument("--json", metavar="FILE", help="file to append the result row to")
    flags = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        row = soak(flags, Path(folder))
    if flags.json:
        append_row(flags.json, row)
    if row["lost"] or row["kills"] < flags.kills:
        sys.exit(1)


def soak(flags, folder):
    """Run the experiment and return its result row."""
    # Plan four checkpoints per kill, because the run may write several before the signal arrives.
    steps = 4 * CHECKPOINT_STEPS * (flags.kills + 2)
    settings = [
        "--problem=toy_ende", "--hparams=toy", f"--train_steps={steps}", f"--checkpoint_steps={CHECKPOINT_STEPS}",
        f"--eval_steps={10 * CHECKPOINT_STEPS}", "--dropout=0.1", "--batch_tokens=512", "--beam_size=1",
        "--ema_decay=0.99", f"--data_dir={folder}/data",
    ]  # fmt: skip
    began = time.monotonic()
    process = train(settings, folder / "whole")
    process.wait()
    seconds = time.monotonic() - began
    assert process.returncode == 0, "the uninterrupted run failed"
    report(f"uninterrupted run: {steps:,} updates in {seconds:.0f} s")

    rng = random.Random(flags.seed)
    killed, statuses, halves = folder / "killed", [], 0
    while len(statuses) < flags.kills:
        before = latest(killed)
        process = train(settings, killed)
        while process.poll() is None and latest(killed) <= before:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.5)
        number = signal.SIGTERM if len(statuses) % 4 == 3 else signal.SIGKILL
        if len(statuses) % 3 == 0:
            while process.poll() is None and not being_written(killed):
                pass
            time.sleep(rng.random() * WRITE)
        process.send_signal(number)
        status = process.wait()
        if status == 0:
            break  # the run has finished
        assert status in (-signal.SIGKILL, 128 + signal.SIGTERM), f"the run exited unexpectedly with status {status}"
        statuses.append(status)
        halves += bool(being_written(killed))
        report(f"{len(statuses)} of {flags.kills}: {number.name} at checkpoint {latest(killed)}, status {status}")
    process = train(settings, killed)
    process.wait()
    lost = int(process.returncode != 0 or not equal(Run.open(folder / "whole"), Run.open(killed)))
    report(f"{len(statuses)} kills, {halves} of them inside a checkpoint write; " + ("LOST" if lost else "equal"))
    return {
        "benchmark": "reliability", "problem": "toy_ende", "updates": steps, "kills": len(statuses),
        "inside_a_checkpoint_write": halves, "sigterm": sum(status > 0 for status in statuses),
        "survived": len(statuses) - lost, "lost": lost, "undisturbed_seconds": seconds,
        "checkpoint_share": checkpoint_share(Run.open(folder / "whole"), seconds), "seed": flags.seed,
        "command": command(), "commit": git_revision(), "machine": describe_machine(),
    }  # fmt: skip


def train(settings, run):
    """Start or resume training in the directory `run` and return the process."""
    command = [sys.executable, "-m", "keras_transformer.train", *settings, f"--output_dir={run}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def latest(run):
    """Return the step of the newest checkpoint, or 0 if the run has no checkpoint."""
    return max(Checkpoints(run / "checkpoints").steps(), default=0)


def being_written(run):
    """Return the paths of the unfinished checkpoints in `run`."""
    return [path for path in (run / "checkpoints").glob(".step-*") if path.suffix != ".old"]


def equal(one, other):
    """Return whether two runs have the same best checkpoint and identical last checkpoints."""
    (arrays, state), (others, other_state) = (run.checkpoints.load("last") for run in (one, other))
    flat, flat_other = ({(p, k): v for p, d in part.items() for k, v in d.items()} for part in (arrays, others))
    return (
        state["step"] == other_state["step"]
        and one.checkpoints.best() == other.checkpoints.best()
        and flat.keys() == flat_other.keys()
        and all(np.array_equal(array, flat_other[name]) for name, array in flat.items())
    )


def checkpoint_share(run, seconds):
    """Return the share of the training time that checkpoints took, and the median time per checkpoint in seconds."""
    written = [row["seconds"] for row in run.metrics() if row["kind"] == "checkpoint"]
    return {"share": sum(written) / seconds, "seconds_each": float(np.median(written))}


if __name__ == "__main__":
    run_command(main)
