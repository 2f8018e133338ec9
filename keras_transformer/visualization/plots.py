"""Matplotlib, as all pictures use it: imported on use, without a screen, with files that are the same each time."""

import importlib.util

from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_open

FORMATS = ("png", "svg")
DPI = 110


def check_matplotlib():
    """Raises a `UserError` if Matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("pictures are drawn with Matplotlib, which is not installed: pip install matplotlib")


def new_figure(width, height):
    """Returns an empty `Figure` of so many inches.

    Raises:
        UserError: Matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI)


def save(figure, path):
    """Write a `Figure` as PNG or SVG, by the name of the file, which appears complete or not at all.

    Each text is drawn with installed fonts that have its characters. In an SVG, whose text is drawn by its viewer with
    the viewer's fonts, characters may also be missing here.

    Raises:
        UserError: No installed font has a character of a PNG's text.
    """
    import matplotlib
    from matplotlib.text import Text

    kind = path.suffix.removeprefix(".")
    texts = figure.findobj(Text)
    fonts, missing = _fonts_for(set().union(*(one.get_text() for one in texts)))
    if missing and kind == "png":
        raise UserError(_missing(missing))
    for text in texts:
        text.set_fontfamily([*text.get_fontfamily(), *fonts])
    still = {"svg.fonttype": "none", "svg.hashsalt": path.name}  # text stays text
    with matplotlib.rc_context(still), atomic_open(path, "wb") as file:
        figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)


def _fonts_for(characters):
    """Return the families of installed fonts that have what Matplotlib's default font lacks, and what none has.

    Args:
        characters: Set of characters.
    """
    from matplotlib import font_manager

    missing = {one for one in characters if one.isprintable()} - _drawn_by(font_manager.findfont("DejaVu Sans"))
    families, paths = [], sorted(font_manager.findSystemFonts()) if missing else []
    drawn = {path: missing & _drawn_by(path) for path in paths}
    while missing and paths:
        # Of fonts that draw as much, a regular sans-serif one.
        path = min(paths, key=lambda p: (-len(drawn[p] & missing), "Regular" not in p, "Sans" not in p, p))
        if not drawn[path] & missing:
            break
        font_manager.fontManager.addfont(path)  # it may be newer than Matplotlib's list of fonts
        families.append(font_manager.get_font(path).family_name)
        missing -= drawn[path]
    return families, missing


def _drawn_by(path):
    """Return the characters of a font that Matplotlib can draw: none of bitmap fonts, as those for coloured emoji."""
    from matplotlib import font_manager

    try:
        font = font_manager.get_font(path)
        return set(map(chr, font.get_charmap())) if font.scalable else set()
    except (OSError, RuntimeError):
        return set()


def _missing(characters):
    shown = "".join(sorted(characters)[:10])
    return (
        f"no installed font can draw {shown!r}: install a font that has these characters (on Debian and Ubuntu "
        "fonts-noto-cjk for Chinese, Japanese and Korean, fonts-noto-core for emoji and other scripts), "
        "or use --format=svg, whose text is drawn with the fonts of its viewer"
    )
