"""python -m keras_transformer.trees: bracketed trees in, drawings or tidy brackets out."""

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
    """Runs the command with a list of arguments."""
    flags = _parse(arguments)
    draw = FORMATS[flags.format]
    for number, tree in _chosen(flags.input, flags.number):
        if flags.format == "svg":
            place = Path(flags.output_dir) / f"tree-{number:04}.svg"
            check_output("a file of --output_dir", place, input=flags.input)
            with atomic_open(place) as file:
                file.write(draw(tree))
            report_if_read(place)
        else:
            is_next = number > 1 and not flags.number
            report(("\n" if is_next and flags.format != "line" else "") + draw(tree))


def _chosen(path, wanted):
    """Yields (number, `Tree`) of the wanted tree of a file, or of each.

    Raises:
        UserError: There is no tree, or fewer than wanted, or `read_trees` or `read_lines` says so.
    """
    name, number = "stdin" if path == "-" else path, 0
    for number, tree in enumerate(read_trees(read_lines(path), name), start=1):
        if wanted in (None, number):
            yield number, tree
        if wanted == number:
            return
    if number == 0:
        raise UserError(f"{name} holds no tree; one is written in brackets: (S (NP (PRP it)) (VP (VBZ works)))")
    if wanted:
        raise UserError(f"{name} has no tree {wanted}; its last one is tree {number}")


def _parse(arguments):
    parser = Parser(
        "trees",
        "--input=parsed.ptb --number=3",
        "Draws constituency trees, which are read as brackets, each over one line or several.",
    )
    parser.add_argument(
        "--input", type=user_path, default="-", help="file of trees in brackets, plain or .gz (default stdin)"
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="text",
        help="text: a drawing for a terminal; svg: a picture in a file; pretty: brackets, indented; "
        "line: brackets, one tree a line (default text)",
    )  # fmt: skip
    parser.add_argument("--number", type=positive_int, help="only the tree of this number, from 1 (default all)")
    parser.add_argument("--output_dir", type=user_path, help="where --format=svg writes tree-0001.svg and so on")
    flags = parser.parse_args(arguments)
    if flags.format == "svg" and not flags.output_dir:
        parser.error("--format=svg needs --output_dir for its files")
    if flags.format != "svg" and flags.output_dir:
        parser.error(f"--output_dir is for --format=svg; --format={flags.format} writes to stdout")
    return flags


if __name__ == "__main__":
    run_command(main)
