"""The registries of problems, hparams, models and layers, which meet only by name.

Problems and hparams are light and register themselves when `load_catalog` runs their files. Models and layers
import Keras, so the built-in ones are registered by where they live and imported on first use; a user's own
are registered by the same decorators.
"""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path

from keras_transformer.errors import UserError, unknown

PACKAGE = Path(__file__).parent


class Registry:
    """Names to objects, each with a one-line description.

    Args:
        kind: What an entry is, in the words of an error message: "problem".
    """

    def __init__(self, kind):
        self.kind = kind
        self._entries = {}
        self._descriptions = {}

    def add(self, name, entry, description):
        """Registers `entry`, an object or its location "module:attribute", under `name`.

        Raises:
            ValueError: The name is taken.
        """
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._entries[name] = entry
        self._descriptions[name] = description

    def register(self, name):
        """Returns a decorator that registers a class or function; its docstring's first line describes it."""

        def decorate(entry):
            self.add(name, entry, (inspect.getdoc(entry) or "").partition("\n")[0])
            return entry

        return decorate

    def check(self, name):
        """Returns `name` if it is registered.

        Raises:
            UserError: It is not; the error names the nearest ones.
        """
        if name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        return name

    def get(self, name):
        """Returns the entry called `name`, importing it where only its location is known."""
        entry = self._entries[self.check(name)]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = self._entries[name] = getattr(importlib.import_module(module), attribute)
        return entry

    def describe(self):
        """Returns sorted pairs (name, one-line description)."""
        return sorted(self._descriptions.items())


problems = Registry("problem")
hparams = Registry("hparams")
models = Registry("model")
positions = Registry("positions")
norms = Registry("norm")
attentions = Registry("encoder_attention")
layers = {"positions": positions, "norm": norms, "encoder_attention": attentions}

register_hparams = hparams.register
register_model = models.register


def register_layer(kind, name):
    """Returns a decorator for a layer that the hparams field `kind` chooses by `name`."""
    if kind not in layers:
        raise unknown("layer kind", kind, layers)
    return layers[kind].register(name)


def register_problem(name):
    """Returns a decorator for a `Problem` class; a translation problem is registered as `name`_rev, too."""

    def decorate(problem):
        problem.name = problem.corpus = name
        problems.register(name)(problem)
        reverse = getattr(problem, "reverse_class", None)
        if reverse is not None:
            reverse = reverse(f"{name}_rev")
            problems.add(reverse.name, reverse, f"{name} in the other direction.")
        return problem

    return decorate


models.add("transformer", "keras_transformer.models.transformer:Transformer", "The encoder-decoder of §3.")
positions.add("sinusoidal", "keras_transformer.layers.position:SinusoidalPositions", "Fixed sines and cosines (§3.5).")
positions.add(
    "learned", "keras_transformer.layers.position:LearnedPositions", "One trained vector a position (Table 3, E)."
)
norms.add(
    "post", "keras_transformer.layers.residual:PostNorm", "LayerNorm(x + Dropout(Sublayer(x))), the paper's (§3.1)."
)
norms.add("pre", "keras_transformer.layers.residual:PreNorm", "x + Dropout(Sublayer(LayerNorm(x))), with a final norm.")
attentions.add(
    "full", "keras_transformer.layers.attention:MultiHeadAttention", "Every position sees every other (§3.2)."
)


def load_catalog():
    """Runs the files of `problems/` and `hparams/`, once, so that they register themselves.

    In a checkout the two folders stand beside the package, in a wheel inside it. They are loaded by path under
    private names, so a folder `problems/` of the user's never takes their place.
    """
    for folder in ("problems", "hparams"):
        home = PACKAGE / "_bundled" / folder
        if not home.is_dir():
            home = PACKAGE.parent / folder
        for path in sorted(home.glob("*.py")):
            name = f"_keras_transformer_{folder}_{path.stem}"
            if name not in sys.modules:
                load_file(path, name)


def load_file(path, name):
    """Imports the Python file `path` as module `name`; returns the module."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise UserError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
