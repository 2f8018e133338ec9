"""The registries of problems, hparams, models and layers, which meet only by name.

Problems and hparams are light and register themselves when `load_catalog` runs their files. Models and layers
import Keras, so the built-in ones are registered by where they live and imported on first use; a user's own
are registered by the same decorators.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

from keras_transformer.utils.errors import UserError, unknown

PACKAGE = Path(__file__).parents[1]


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
            ValueError: The name is taken, and not by the same definition in a notebook's cell that was run again.
        """
        if name in self and not _is_run_again(self._entries[name], entry):
            raise ValueError(f"{self.kind} {name!r} is registered twice; choose another name")
        self._entries[name] = entry
        self._descriptions[name] = description

    def __contains__(self, name):
        return name in self._entries

    def register(self, name):
        """Returns a decorator that registers a class or function; its docstring's first line describes it.

        Raises:
            UserError: The name is no text, or what is decorated is neither a class nor a function.
        """
        if not isinstance(name, str):
            raise UserError(f"{self.kind} {getattr(name, '__name__', name)} has no name; write @register_…(NAME)")

        def decorate(entry):
            if not callable(entry):
                raise UserError(f"{self.kind} {name!r} must be a class or function, not {entry!r}")
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
REGISTRIES = (problems, hparams, models, *layers.values())

register_model = models.register


def register_layer(kind: str, name: str) -> Callable:
    """Returns a decorator for a layer that the hparams field `kind` chooses by `name`.

    Raises:
        UserError: There is no such kind.
    """
    if kind not in layers:
        raise unknown("layer kind", kind, layers)
    return layers[kind].register(name)


def register_hparams(name: str) -> Callable:
    """Returns a decorator for a function without arguments that returns `HParams`.

    Raises:
        UserError: When the function is called and returns something else.
    """
    register = hparams.register(name)

    def decorate(function):
        @functools.wraps(function)
        def checked():
            result = function()
            if not dataclasses.is_dataclass(type(result)):
                raise UserError(f"hparams {name!r}: {function.__name__}() must return HParams, not {result!r}")
            return result

        register(checked if callable(function) else function)
        return function

    return decorate


def register_problem(name: str, reverse: str | None = None) -> Callable:
    """Return a decorator for a `Problem` class, which also registers a translation problem's reverse, `{name}_rev`.

    Args:
        name: Its name, and that of its corpus.
        reverse: One more name for the other direction, where a natural one exists: "multi30k_deen".

    Raises:
        UserError: What is decorated is no `Problem`, or has settings and is no dataclass.
    """
    register = problems.register(name)

    def decorate(problem):
        if not (isinstance(problem, type) and hasattr(problem, "prepared_dir")):
            raise UserError(f"problem {name!r} must be a subclass of Problem, not {problem!r}")
        if any(isinstance(value, dataclasses.Field) for value in vars(problem).values()):
            raise UserError(
                f"problem {name!r} has settings and is no dataclass; put @dataclasses.dataclass(kw_only=True) between "
                f"@register_problem and class {problem.__name__}"
            )
        with all_or_nothing():
            problem.name = problem.corpus = name
            register(problem)
            if hasattr(problem, "reverse_class"):
                for other in filter(None, (f"{name}_rev", reverse)):
                    problems.add(other, problem.reverse_class(other), f"{name} in the other direction.")
        return problem

    return decorate


def entries():
    """Return {(kind, name): entry} of all registries."""
    return {(one.kind, name): entry for one in REGISTRIES for name, entry in one._entries.items()}


@contextlib.contextmanager
def all_or_nothing():
    """Remove the names that were registered inside the block if it raises."""
    before = [(dict(one._entries), dict(one._descriptions)) for one in REGISTRIES]
    try:
        yield
    except BaseException:
        for one, (entries, descriptions) in zip(REGISTRIES, before):
            one._entries, one._descriptions = entries, descriptions
        raise


def _is_run_again(old, new):
    """Whether both are one definition in a notebook, or typed at the prompt."""
    old, new = ((getattr(entry, "__module__", None), getattr(entry, "__qualname__", None)) for entry in (old, new))
    return old == new and new[0] == "__main__"


models.add("transformer", "keras_transformer.models.transformer:Transformer", "The encoder-decoder of §3.")
models.add(
    "word_aligned_transformer",
    "keras_transformer.parsing.model:WordAlignedTransformer",
    "For parsing: a cross-attention head per layer sees the current word only (not the paper's).",
)
models.add("marian", "keras_transformer.models.marian:MarianTransformer", "Marian's, for OPUS-MT: biases in attention.")
positions.add("sinusoidal", "keras_transformer.layers.position:SinusoidalPositions", "Fixed sines and cosines (§3.5).")
positions.add(
    "learned", "keras_transformer.layers.position:LearnedPositions", "One trained vector a position (Table 3, E)."
)
norms.add(
    "post", "keras_transformer.layers.residual:PostNorm", "LayerNorm(x + Dropout(Sublayer(x))), the paper's (§3.1)."
)
norms.add("pre", "keras_transformer.layers.residual:PreNorm", "x + Dropout(Sublayer(LayerNorm(x))), with a final norm.")
norms.add("marian", "keras_transformer.models.marian:MarianPostNorm", "As post, with the ε 1e-5 of Marian models.")
attentions.add(
    "full", "keras_transformer.layers.attention:MultiHeadAttention", "Every position sees every other (§3.2)."
)
attentions.add(
    "additive",
    "keras_transformer.layers.additive_attention:AdditiveAttention",
    "Every other, by vᵀtanh(W_q q + W_k k) in place of dot products (§3.2.1).",
)
attentions.add(
    "restricted",
    "keras_transformer.layers.restricted_attention:RestrictedAttention",
    "The attention_window positions around it alone (§4).",
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
