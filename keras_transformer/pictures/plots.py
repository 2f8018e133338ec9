"""Matplotlib, as all pictures use it: imported on use, without a screen, with files that are the same each time."""

import importlib.util

from keras_transformer.errors import UserError
from keras_transformer.files import written

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
    """Writes a `Figure`, as PNG or SVG by the name of the file; it appears whole, or not at all."""
    import matplotlib

    kind = path.suffix.removeprefix(".")
    still = {"svg.fonttype": "none", "svg.hashsalt": path.name}  # text stays text
    with matplotlib.rc_context(still), written(path, "wb") as file:
        figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
