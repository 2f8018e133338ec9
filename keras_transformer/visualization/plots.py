"""Matplotlib figures that are reproducible and need no display. Importing this module does not import Matplotlib."""

import importlib.util

from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_open

FORMATS = ("png", "svg")
DPI = 110


def check_matplotlib():
    """Raise a `UserError` if Matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("figures and curves need Matplotlib, which is not installed. Run pip install matplotlib.")


def new_figure(width, height):
    """Return an empty `Figure` of the given size in inches.

    Raises:
        UserError: Matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI)


def save(figure, path):
    """Write a `Figure` atomically as PNG or SVG, depending on the suffix of the path.

    The function selects installed fonts that contain the characters of the texts. An SVG may also contain characters
    that no installed font covers, because its viewer renders the text.

    Raises:
        UserError: The format is PNG, and no installed font contains one of the characters.
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
    reproducible = {"svg.fonttype": "none", "svg.hashsalt": path.name}  # text instead of outlines, no random ids
    with matplotlib.rc_context(reproducible), atomic_open(path, "wb") as file:
        figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)


def _fonts_for(characters):
    """Find installed fonts for the characters that Matplotlib's default font lacks.

    Args:
        characters: Set of characters.

    Returns:
        List of font families, and the set of characters that no installed font contains.
    """
    from matplotlib import font_manager

    missing = {one for one in characters if one.isprintable()} - _drawn_by(font_manager.findfont("DejaVu Sans"))
    families, paths = [], sorted(font_manager.findSystemFonts()) if missing else []
    drawn = {path: missing & _drawn_by(path) for path in paths}
    while missing and paths:
        # Prefer fonts with more of the characters, then regular sans-serif fonts.
        path = min(paths, key=lambda p: (-len(drawn[p] & missing), "Regular" not in p, "Sans" not in p, p))
        if not drawn[path] & missing:
            break
        font_manager.fontManager.addfont(path)  # Matplotlib's cached list may lack this font
        families.append(font_manager.get_font(path).family_name)
        missing -= drawn[path]
    return families, missing


def _drawn_by(path):
    """Return the set of characters that Matplotlib can draw with a font. For bitmap fonts, the set is empty."""
    from matplotlib import font_manager

    try:
        font = font_manager.get_font(path)
        return set(map(chr, font.get_charmap())) if font.scalable else set()
    except (OSError, RuntimeError):
        return set()


def _missing(characters):
    shown = "".join(sorted(characters)[:10])
    return (
        f"no installed font can draw {shown!r}. Use --format=svg, which leaves the choice of fonts to the viewer, or "
        "install a font with these characters. On Debian and Ubuntu, install fonts-noto-cjk for Chinese, Japanese and "
        "Korean, or fonts-noto-core for emoji and other scripts."
    )
