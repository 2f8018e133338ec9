"""python -m keras_transformer.average: average the last checkpoints of a run (§6.1)."""

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import Parser, positive_int, run_command, user_path
from keras_transformer.cli.output import report
from keras_transformer.runs.run import Run


def main(arguments):
    """Run the command with a list of arguments."""
    parser = Parser(
        "average",
        "--run=runs/toy_ende-toy --last=5",
        "Average the weights of the last checkpoints into the checkpoint `averaged`. The other checkpoints do not "
        "change. Run the command again after more training.",
    )
    parser.add_argument("--run", type=user_path, required=True, help="run directory")
    parser.add_argument(
        "--last", type=positive_int, help="maximum number of checkpoints (default: average_last of the run)"
    )
    parser.add_argument(
        "--scores", default="on", choices=("on", "off"),
        help="print validation scores of each checkpoint and of the average (default on)",
    )  # fmt: skip
    flags = parser.parse_args(arguments)
    Run.open(flags.run)  # report a wrong directory before loading Keras
    load_keras()
    from keras_transformer.decoding.evaluation import score_checkpoints
    from keras_transformer.runs.averaging import average_checkpoints

    steps = average_checkpoints(flags.run, flags.last)
    if flags.scores == "on":
        for name, score in score_checkpoints(Run.open(flags.run), [*steps, "averaged"]):
            report(f"{f'step {name:,}' if name != 'averaged' else name:>16}  {score}")
    report(
        f"averaged the checkpoints of steps {', '.join(map(str, steps))}; use the average with --checkpoint=averaged"
    )


if __name__ == "__main__":
    run_command(main)
