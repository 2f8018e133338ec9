"""Whether a training still goes as it did: the loss of every update, by this version and by an earlier one.

    git worktree add ../earlier REVISION
    PYTHONPATH=../earlier python benchmarks/loss_curve.py --raw_dir=CORPORA --save=earlier.json
    python benchmarks/loss_curve.py --raw_dir=CORPORA --save=now.json
    python benchmarks/loss_curve.py --raw_dir=CORPORA --seed=2 --save=seed.json
    python benchmarks/loss_curve.py --compare=now.json,earlier.json --json=docs/results/loss_curve.jsonl
    python benchmarks/loss_curve.py --compare=now.json,seed.json --json=docs/results/loss_curve.jsonl

Trains without dropout, whose masks an earlier version may draw otherwise; two seeds
show how far apart curves are that have nothing in common but the data. The losses are smoothed, in nats a token.
"""

import json
import statistics
from pathlib import Path

from command_line import Parser, add_row, check_flags, number, print_table

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import run_command
from keras_transformer.utils.errors import UserError


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--problem", default="multi30k_ende")
    parser.add_argument("--hparams", default="tiny")
    parser.add_argument("--raw_dir", help="folder of the corpus files, where they are on disk")
    parser.add_argument("--data_dir", default="data", help="folder of prepared corpora (default %(default)s)")
    parser.add_argument("--updates", type=number, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", metavar="FILE", help="train, and write the losses here")
    parser.add_argument("--compare", metavar="FILE,FILE", help="compare the losses of two trainings")
    parser.add_json()
    flags = parser.parse_args(arguments)
    check_flags(flags)
    if (flags.save is None) == (flags.compare is None):
        raise UserError("either --save or --compare is needed; see --help")
    if flags.save:
        Path(flags.save).write_text(json.dumps(trained(flags)) + "\n", encoding="utf-8")
    else:
        row = add_row(compared(*map(curve, flags.compare.split(","))), flags.json)
        print_table("loss_curves", [row])


def trained(flags):
    """Return {"problem", "commit", "seed", "machine", "losses"} of a new training."""
    load_keras()
    import keras_transformer as kt
    from keras_transformer.runs.manifest import git_revision, machine
    from keras_transformer.training.schedule import compile_arguments

    commit = git_revision()  # of what is loaded now, whatever is checked out until the end
    problem = kt.problem(flags.problem, data_dir=flags.data_dir, raw_dir=flags.raw_dir).prepare()
    hparams = kt.hparams(flags.hparams, dropout=0.0, seed=flags.seed)
    model = kt.Transformer.from_hparams(hparams, vocab_size=problem.tokenizer.vocab_size)
    model.compile(**compile_arguments(hparams))
    batches = problem.batches("train", hparams)
    losses = []
    for step in range(flags.updates):  # each with its own `fit`, whose loss is a mean over updates
        history = model.fit(batches.replace(start=step), steps_per_epoch=1, epochs=1, verbose=0)
        losses += history.history["loss"]
    return {
        "problem": problem.name, "commit": commit, "seed": flags.seed, "machine": machine(), "losses": losses,
    }  # fmt: skip


def curve(path):
    """Return what `trained` wrote.

    Raises:
        UserError: The file is not there, or not such a one.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        return {name: found[name] for name in ("problem", "commit", "seed", "machine", "losses")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not what --save writes: {error}") from error


def compared(one, other):
    """Return how far apart two curves are: a dictionary of results."""
    if len(one["losses"]) != len(other["losses"]):
        raise UserError(f"the trainings are of {len(one['losses'])} and {len(other['losses'])} updates")
    apart = [abs(a - b) for a, b in zip(one["losses"], other["losses"])]
    return {
        "benchmark": "loss_curve", "problem": one["problem"],
        "commits": [one["commit"], other["commit"]],
        "seeds": [one["seed"], other["seed"]], "updates": len(apart),
        "first_loss": one["losses"][0], "last_loss": statistics.fmean(one["losses"][-20:]),
        "greatest_difference": max(apart), "mean_difference": statistics.fmean(apart),
    }  # fmt: skip


if __name__ == "__main__":
    run_command(main)
