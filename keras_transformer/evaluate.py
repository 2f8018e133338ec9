"""python -m keras_transformer.evaluate: decodes a split and scores it."""

from pathlib import Path

from keras_transformer.files import written
from keras_transformer.flags import (
    Parser,
    add_decoding_flags,
    add_run_flags,
    decoding_arguments,
    report,
    run_command,
)
from keras_transformer.runs.directory import Run
from keras_transformer.startup import load_keras


def main(arguments):
    """Runs the command with a list of arguments."""
    parser = Parser(
        "evaluate", "--run=runs/toy_ende-toy --split=test", "Decodes a split of the run's problem and scores it."
    )
    add_run_flags(parser)
    add_decoding_flags(parser)
    parser.add_argument("--split", default="test", choices=("train", "validation", "test"), help="(default test)")
    parser.add_argument("--output_dir", help="where to write the outputs and references (default nowhere)")
    parser.add_argument("--samples", type=int, default=0, help="examples to print (default 0)")
    parser.add_argument("--results", help="JSON lines file to which a row with the scores is added")
    flags = parser.parse_args(arguments)
    Run.open(flags.run)  # a wrong directory is said before Keras is loaded
    load_keras()
    from keras_transformer.decoding.evaluation import evaluate

    result = evaluate(flags.run, flags.checkpoint, flags.split, **decoding_arguments(flags))
    for source, output, reference in result.examples()[: flags.samples]:
        report(f"source:    {source}\noutput:    {output}\nreference: {reference}\n")
    if flags.output_dir:
        for name in ("sources", "outputs", "references"):
            with written(Path(flags.output_dir) / f"{flags.split}.{name}.txt") as file:
                file.writelines(f"{line}\n" for line in getattr(result, name))
    if flags.results:
        result.append_row(flags.results)
    report(f"{len(result.outputs):,} lines of {flags.split} in {result.seconds:.1f} s")
    for score in result.scores:
        report(score.signature)
        report(str(score))


if __name__ == "__main__":
    run_command(main)
