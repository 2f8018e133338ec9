"""python -m keras_transformer.visualize: draw the attention of a run, or learning curves."""

from pathlib import Path

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import Parser, add_run_flags, positive_int, run_command, user_path
from keras_transformer.cli.output import report
from keras_transformer.runs.run import Run
from keras_transformer.runs.totals import lines_by_step
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_open
from keras_transformer.visualization.attention import KINDS, attention_page
from keras_transformer.visualization.attention_figures import FIGURES, draw_figure
from keras_transformer.visualization.curves import AXES, draw_curves
from keras_transformer.visualization.plots import FORMATS, check_matplotlib, save

ATTENTION_FLAGS = ("run", "checkpoint", "text", "target", "figure", "attention", "layer", "heads", "word", "pieces")
"""Flags that cannot be combined with `--curves`."""


def main(arguments):
    """Run the command with a list of arguments."""
    flags = _parse(arguments)
    folder = Path(flags.output_dir)
    if flags.curves or flags.figure:
        check_matplotlib()
    if flags.curves:
        figure = draw_curves({path: lines_by_step(Run.open(path).metrics()) for path in flags.curves}, flags.over)
        return _save(figure, folder / f"curves.{flags.format}")
    run = Run.open(flags.run)
    load_keras()
    from keras_transformer.decoding.translator import Translator

    maps = Translator.from_runs([run], flags.checkpoint).attention(flags.text, flags.target)
    kind = flags.attention or ("encoder" if flags.figure else "cross")
    layer = None if flags.layer is None else flags.layer - 1
    if flags.figure:
        drawn = maps if flags.pieces else maps.merged()
        figure = draw_figure(flags.figure, drawn, kind, layer, flags.heads, flags.word)
        return _save(figure, folder / f"figure-{flags.figure}.{flags.format}")
    page = attention_page(maps, kind, layer, flags.heads, flags.pieces)
    path = folder / "attention.html"
    with atomic_open(path) as file:
        file.write(page)
    report(f"{maps.target_text}\n{path}: open it in a browser")


def _save(figure, path):
    save(figure, path)
    report(path)


def _parse(arguments):
    parser = Parser(
        "visualize",
        '--run=runs/toy_ende-toy --text="The small dog sees a cat." --output_dir=pictures',
        "Show the attention of a model on an HTML page or in figures like the paper's figures 3 to 5.\n"
        "With --curves=RUN, draw the learning curves of one or several runs.",
    )
    parser.add_argument(
        "--output_dir", type=user_path, required=True, help="folder for attention.html, figure-3.png or curves.png"
    )
    parser.add_argument("--format", choices=FORMATS, help="file format of figures and curves (default png)")
    add_run_flags(parser, required=False)
    group = parser.add_argument_group("attention")
    group.add_argument("--text", help="source sentence")
    group.add_argument("--target", help="target sentence (default the translation)")
    group.add_argument(
        "--figure", type=int, choices=FIGURES,
        help="draw a figure of the paper: " + ", ".join(f"{number}: {what}" for number, what in FIGURES.items()),
    )  # fmt: skip
    group.add_argument(
        "--attention",
        choices=KINDS,
        help="attention to draw, or to show first on the page (default cross, or encoder for figures)",
    )
    group.add_argument("--layer", type=positive_int, help="layer, from 1 (default the second to last)")
    group.add_argument(
        "--heads", type=_heads, metavar="N,N", help="heads, from 1 (default all, or the first two for figures 4 and 5)"
    )
    group.add_argument("--word", help="query word of figures 3 and 4, or its number from 1 (default the middle one)")
    group.add_argument("--pieces", action="store_true", help="show subwords instead of words")
    group = parser.add_argument_group("curves")
    group.add_argument("--curves", type=user_path, action="append", metavar="RUN", help="run directory (repeatable)")
    group.add_argument("--over", choices=AXES, help="quantity on the x-axis (default step)")
    flags = parser.parse_args(arguments)
    given = [name for name in ATTENTION_FLAGS if getattr(flags, name) not in (None, False)]
    if flags.curves and given:
        raise UserError(f"--{given[0]} cannot be combined with --curves")
    if not flags.curves and not (flags.run and flags.text):
        raise UserError("visualize needs --run and --text to show attention, or --curves=RUN; see --help")
    if flags.over and not flags.curves:
        raise UserError("--over needs --curves")
    if flags.word and flags.figure not in (3, 4):
        raise UserError("--word needs --figure=3 or --figure=4; on the HTML page, point at a word instead")
    if flags.format and not (flags.figure or flags.curves):
        raise UserError("--format needs --figure or --curves; without them, the output is an HTML page")
    flags.over, flags.format = flags.over or "step", flags.format or "png"
    return flags


def _heads(text):
    """Convert a text to a list of indices from 0. For example, "1,5" gives [0, 4]."""
    return [positive_int(part.strip()) - 1 for part in text.split(",")]


if __name__ == "__main__":
    run_command(main)
