"""`python -m keras_transformer.prepare`: learn the vocabulary and encode the corpus."""

from keras_transformer.cli.arguments import Parser, add_problem_flags, read_problem_flags, run_command
from keras_transformer.cli.output import report_if_read
from keras_transformer.utils.logs import terminal_log


def main(arguments):
    """Run the command with a list of arguments."""
    parser = Parser(
        "prepare",
        "--problem=multi30k_ende --raw_dir=multi30k",
        "Learn the vocabulary of a problem and encode its corpus. `train` does the same if that is still to be done.",
    )
    add_problem_flags(parser, default_problem="toy_ende", default_hparams="toy")
    flags = parser.parse_args(arguments)
    problem, _ = read_problem_flags(flags)
    with terminal_log():
        problem.prepare()
    report_if_read(f"{problem.name} is prepared in {problem.prepared_dir}")


if __name__ == "__main__":
    run_command(main)
