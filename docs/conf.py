"""Sphinx configuration for `make docs`."""

import re

from sphinx.util.inspect import signature, stringify_signature

from keras_transformer import __version__
from keras_transformer.backend.loading import load_keras

load_keras()

project = "keras_transformer"
version = release = __version__
extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design",
]  # fmt: skip
exclude_patterns = ["_build", "pages"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the Args sections of docstrings describe types
napoleon_use_rtype = False
napoleon_custom_sections = [("Call arguments", "params_style")]

html_theme = "furo"
html_title = "keras_transformer"
html_static_path = ["_static"]
html_css_files = ["custom.css"]


def constructor_signature(app, what, name, obj, options, arguments, returned):
    """Return the signature of `__init__`. Sphinx would show that of `__new__`, which Keras layers define."""
    if what == "class" and "__init__" in vars(obj):
        return stringify_signature(signature(obj.__init__, bound_method=True), show_annotation=False), None
    return None


def code_spans(app, what, name, obj, options, lines):
    """Turn text in single backticks into reStructuredText literals."""
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``\\ ", "\n".join(lines))
    lines[:] = text.split("\n")


def setup(app):
    app.connect("autodoc-process-docstring", code_spans, priority=400)  # run before napoleon
    app.connect("autodoc-process-signature", constructor_signature)
