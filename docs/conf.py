"""How Sphinx makes pages of this folder: `make docs`."""

from keras_transformer import __version__

project = "keras_transformer"
version = release = __version__
extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "keras_transformer"
