"""Compare the losses of two runs with different versions of the code or different seeds.

    git worktree add ../earlier REVISION
    PYTHONPATH=../earlier python benchmarks/loss_curve.py --raw_dir=CORPORA --save=earlier.json
    python benchmarks/loss_curve.py --raw_dir=CORPORA --save=now.json
    python benchmarks/loss_curve.py --raw_dir=CORPORA --seed=2 --save=seed.json
    python benchmarks/loss_curve.py --compare=now.json,earlier.json --json=docs/results/loss_curve.jsonl
    python benchmarks/loss_curve.py --compare=now.json,seed.json --json=docs/results/loss_curve.jsonl

Runs use no dropout, because different versions of the code may draw different dropout masks. A comparison of two
seeds shows how much losses differ by chance. Losses are label-smoothed, in nats per token.
"""

import json
import statistics
from pathlib import Path

from command_line import Parser, add_row, print_table

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.utils.errors import UserError

FIELDS = ("problem", "commit", "seed", "machine", "losses")


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--problem", default="multi30k_ende", help="registered problem (default %(default)s)")
    parser.add_argument("--hparams", default="tiny", help="preset (default %(default)s)")
    parser.add_corpus()
    parser.add_argument("--updates", type=positive_int, default=500, help="number of updates (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the run (default %(default)s)")
    parser.add_argument("--save", metavar="FILE", help="file for the losses of a new run")
    parser.add_argument("--compare", metavar="FILE,FILE", help="files with the losses of two runs")
    flags = parser.parse_args(arguments)
    if (flags.save is None) == (flags.compare is None):
        raise UserError("either --save or --compare is required; see --help")
    if flags.save:
        Path(flags.save).write_text(json.dumps(train(flags)) + "\n", encoding="utf-8")
    else:
        row = add_row(compare(*map(read, flags.compare.split(","))), flags.json)
        print_table("loss_curves", [row])


def train(flags):
    """Train a new model. Return a dictionary with "problem", "commit", "seed", "machine" and "losses"."""
    load_keras()
    import keras_transformer as kt
    from keras_transformer.runs.provenance import git_revision
    from keras_transformer.training.schedule import compile_arguments
    from keras_transformer.utils.machine import describe_machine

    commit = git_revision()  # read before training, because the checkout may change during training
    problem = kt.problem(flags.problem, data_dir=flags.data_dir, raw_dir=flags.raw_dir).prepare()
    hparams = kt.hparams(flags.hparams, dropout=0.0, seed=flags.seed)
    model = kt.Transformer.from_hparams(hparams, vocab_size=problem.tokenizer.vocab_size)
    model.compile(**compile_arguments(hparams))
    batches = problem.batches("train", hparams)
    losses = []
    for step in range(flags.updates):  # one `fit` per update, because `fit` returns the mean loss of an epoch
        history = model.fit(batches.replace(start=step), steps_per_epoch=1, epochs=1, verbose=0)
        losses += history.history["loss"]
    return dict(zip(FIELDS, (problem.name, commit, flags.seed, describe_machine(), losses)))


def read(path):
    """Return the contents of a file written with `--save`.

    Raises:
        UserError: The file is missing or was not written with `--save`.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        return {name: found[name] for name in FIELDS}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} must be a file written with --save: {error}") from error


def compare(one, other):
    """Compare the losses of two runs and return the result row."""
    if len(one["losses"]) != len(other["losses"]):
        counts = f"{len(one['losses'])} and {len(other['losses'])}"
        raise UserError(f"runs must have equal numbers of updates, got {counts}. Use the same --updates.")
    differences = [abs(a - b) for a, b in zip(one["losses"], other["losses"])]
    return {
        "benchmark": "loss_curve", "problem": one["problem"],
        "commits": [one["commit"], other["commit"]],
        "seeds": [one["seed"], other["seed"]], "updates": len(differences),
        "first_loss": one["losses"][0], "last_loss": statistics.fmean(one["losses"][-20:]),
        "greatest_difference": max(differences), "mean_difference": statistics.fmean(differences),
    }  # fmt: skip


if __name__ == "__main__":
    run_command(main)
