"""python -m keras_transformer.trees: draw bracketed trees, or reformat them."""

from pathlib import Path

from keras_transformer.cli.arguments import Parser, positive_int, run_command, user_path
from keras_transformer.cli.output import report, report_if_read
from keras_transformer.data.corpus import read_lines
from keras_transformer.parsing.drawing import svg_drawing, text_drawing
from keras_transformer.parsing.tree import Tree, read_trees
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_open, check_output

FORMATS = {"text": text_drawing, "svg": svg_drawing, "pretty": Tree.pretty, "line": str}


def main(arguments):
    """Run the command with a list of arguments."""
    flags = _parse(arguments)
    draw = FORMATS[flags.format]
    for number, tree in _select(flags.input, flags.number):
        if flags.format == "svg":
            place = Path(flags.output_dir) / f"tree-{number:04}.svg"
            check_output("a file in --output_dir", place, input=flags.input)
            with atomic_open(place) as file:
                file.write(draw(tree))
            report_if_read(place)
        else:
            is_next = number > 1 and not flags.number
            report(("\n" if is_next and flags.format != "line" else "") + draw(tree))


def _select(path, wanted):
    """Yield (number, `Tree`) for the tree with the number `wanted`, or for all trees if `wanted` is None.

    Raises:
        UserError: The file cannot be read, contains no tree, or has fewer trees than `wanted`.
    """
    name, number = "stdin" if path == "-" else path, 0
    for number, tree in enumerate(read_trees(read_lines(path), name), start=1):
        if wanted in (None, number):
            yield number, tree
        if wanted == number:
            return
    if number == 0:
        raise UserError(f"{name} contains no trees. Write trees such as (S (NP (PRP it)) (VP (VBZ works))).")
    if wanted:
        raise UserError(f"--number must be at most {number} (the number of trees in {name}), got {wanted}")


def _parse(arguments):
    parser = Parser(
        "trees",
        "--input=parsed.ptb --number=3",
        "Draw constituency trees. The input contains bracketed trees, each of which may span several lines.",
    )
    parser.add_argument(
        "--input", type=user_path, default="-", help="file of bracketed trees, plain text or .gz (default stdin)"
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="text",
        help="text for a terminal drawing, svg for picture files, pretty for indented brackets, or line for one "
        "bracketed tree per line (default text)",
    )  # fmt: skip
    parser.add_argument("--number", type=positive_int, help="number of a single tree, from 1 (default all trees)")
    parser.add_argument("--output_dir", type=user_path, help="folder for the files tree-0001.svg, … of --format=svg")
    flags = parser.parse_args(arguments)
    if flags.format == "svg" and not flags.output_dir:
        parser.error("--format=svg requires --output_dir")
    if flags.format != "svg" and flags.output_dir:
        parser.error(f"--output_dir requires --format=svg, because --format={flags.format} writes to stdout")
    return flags


if __name__ == "__main__":
    run_command(main)
