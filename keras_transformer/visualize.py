"""python -m keras_transformer.visualize: pictures of a run's attention, and of how trainings went."""

from pathlib import Path

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import Parser, add_run_flags, positive_int, run_command, user_path
from keras_transformer.cli.output import report
from keras_transformer.runs.run import Run
from keras_transformer.runs.summary import lines_by_step
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_open
from keras_transformer.visualization.attention import KINDS, attention_page
from keras_transformer.visualization.attention_figures import FIGURES, draw_figure
from keras_transformer.visualization.curves import AXES, draw_curves
from keras_transformer.visualization.plots import FORMATS, check_matplotlib, save

OF_ATTENTION = ("run", "checkpoint", "text", "target", "figure", "attention", "layer", "heads", "word", "pieces")


def main(arguments):
    """Runs the command with a list of arguments."""
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

    maps = Translator.load(run.path, flags.checkpoint).attention(flags.text, flags.target)
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
        "Shows what a model attends to, in a page for a browser or in the manner of the paper's figures 3 to 5;\n"
        "with --curves=RUN, how one or several trainings went.",
    )
    parser.add_argument(
        "--output_dir", type=user_path, required=True, help="where attention.html, figure-3.png or curves.png goes"
    )
    parser.add_argument("--format", choices=FORMATS, help="of figures and curves (default png)")
    add_run_flags(parser, required=False)
    group = parser.add_argument_group("attention")
    group.add_argument("--text", help="a source sentence")
    group.add_argument("--target", help="its target (default its translation)")
    group.add_argument(
        "--figure", type=int, choices=FIGURES, help="; ".join(f"{number}: {what}" for number, what in FIGURES.items())
    )
    group.add_argument(
        "--attention", choices=KINDS, help="which is shown, or shown at first (default cross, of figures encoder)"
    )
    group.add_argument("--layer", type=positive_int, help="from 1 (default the last but one)")
    group.add_argument("--heads", type=_heads, metavar="N,N", help="from 1 (default all; of figures 4 and 5 two)")
    group.add_argument("--word", help="of figures 3 and 4: the attending word, or its number from 1")
    group.add_argument("--pieces", action="store_true", help="show the vocabulary's pieces, not words")
    group = parser.add_argument_group("curves")
    group.add_argument(
        "--curves", type=user_path, action="append", metavar="RUN", help="a run directory; may be repeated"
    )
    group.add_argument("--over", choices=AXES, help="what the curves run over (default step)")
    flags = parser.parse_args(arguments)
    asked = [name for name in OF_ATTENTION if getattr(flags, name) not in (None, False)]
    if flags.curves and asked:
        raise UserError(f"--{asked[0]} is for pictures of attention, not for --curves")
    if not flags.curves and not (flags.run and flags.text):
        raise UserError("visualize takes --run and --text for a picture of attention, or --curves=RUN; see --help")
    if flags.over and not flags.curves:
        raise UserError("--over is for --curves")
    if flags.word and flags.figure not in (3, 4):
        raise UserError("--word is for --figure=3 and --figure=4; in a page a word is chosen by pointing at it")
    if flags.format and not (flags.figure or flags.curves):
        raise UserError("--format is for --figure and --curves; the page is HTML")
    flags.over, flags.format = flags.over or "step", flags.format or "png"
    return flags


def _heads(text):
    """[0, 4] of "1,5"."""
    return [positive_int(part.strip()) - 1 for part in text.split(",")]


if __name__ == "__main__":
    run_command(main)
