"""Registries of problems, hparams, models and layers. Flags and hparams select the entries by name.

`load_catalog` imports the files of `problems/` and `hparams/`, whose decorators register their content. For a built-in
model or layer, a registry stores the location and imports the module on first use. Programs that need no model can then
run without Keras.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

from keras_transformer.utils.errors import UserError, unknown

PACKAGE = Path(__file__).parents[1]


class Registry:
    """Mapping from names to objects, with one-line descriptions.

    Args:
        kind: Kind of the objects for error messages, such as "problem".
    """

    def __init__(self, kind):
        self.kind = kind
        self._entries = {}
        self._descriptions = {}

    def add(self, name, entry, description):
        """Register an object, or its location "module:attribute".

        Raises:
            ValueError: The name is already registered. Only a notebook cell that runs again may replace its definition.
        """
        if name in self and not _is_run_again(self._entries[name], entry):
            raise ValueError(f"{self.kind} {name!r} is registered twice; choose another name")
        self._entries[name] = entry
        self._descriptions[name] = description

    def __contains__(self, name):
        return name in self._entries

    def register(self, name):
        """Return a decorator that registers a class or function. The first line of its docstring is the description.

        Raises:
            UserError: The name is not a string, or the decorated object is neither a class nor a function.
        """
        if not isinstance(name, str):
            raise UserError(f"{self.kind} must have a name, got {name!r}. Write @register_…(NAME).")

        def decorate(entry):
            if not callable(entry):
                raise UserError(f"{self.kind} {name!r} must be a class or function, got {entry!r}")
            self.add(name, entry, (inspect.getdoc(entry) or "").partition("\n")[0])
            return entry

        return decorate

    def check(self, name):
        """Return `name` if it is registered.

        Raises:
            UserError: The name is unknown.
        """
        if name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        return name

    def get(self, name):
        """Return the object registered as `name`. Import it first if only its location is known.

        Raises:
            UserError: The name is unknown.
        """
        entry = self._entries[self.check(name)]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = self._entries[name] = getattr(importlib.import_module(module), attribute)
        return entry

    def describe(self):
        """Return sorted pairs (name, description)."""
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
    """Return a decorator that registers a layer class.

    Args:
        kind: Field of the hparams that selects the layer: "positions", "norm" or "encoder_attention".
        name: Value of that field.

    Raises:
        UserError: The kind is unknown.
    """
    if kind not in layers:
        raise unknown("layer kind", kind, layers)
    return layers[kind].register(name)


def register_hparams(name: str) -> Callable:
    """Return a decorator that registers a function. The function takes no arguments and returns `HParams`.

    Raises:
        UserError: The name is not a string, or the decorated object is not callable. If the function does not return
            `HParams`, the error appears when the hparams are loaded.
    """
    return hparams.register(name)


def register_problem(name: str, reverse: str | None = None) -> Callable:
    """Return a decorator that registers a `Problem` class. For a translation problem it also registers `{name}_rev`.

    Args:
        name: Name of the problem and of its corpus.
        reverse: Additional name of the reverse direction, such as "multi30k_deen".

    Raises:
        UserError: The class is not a `Problem`, or it has settings and is not a dataclass.
    """
    register = problems.register(name)

    def decorate(problem):
        if not (isinstance(problem, type) and hasattr(problem, "prepared_dir")):
            raise UserError(f"problem {name!r} must be a subclass of Problem, got {problem!r}")
        if any(isinstance(value, dataclasses.Field) for value in vars(problem).values()):
            raise UserError(
                f"problem {name!r} has settings and must be a dataclass. Put @dataclasses.dataclass(kw_only=True) "
                f"between @register_problem and class {problem.__name__}."
            )
        with all_or_nothing():
            problem.name = problem.corpus = name
            register(problem)
            if getattr(problem, "reverse_class", None):
                for other in filter(None, (f"{name}_rev", reverse)):
                    problems.add(other, problem.reverse_class(other), f"{name} in the other direction.")
        return problem

    return decorate


def entries():
    """Return {(kind, name): object or location} for all registries."""
    return {(one.kind, name): entry for one in REGISTRIES for name, entry in one._entries.items()}


@contextlib.contextmanager
def all_or_nothing():
    """Undo all registrations of a `with` block if it raises an exception."""
    before = [(dict(one._entries), dict(one._descriptions)) for one in REGISTRIES]
    try:
        yield
    except BaseException:
        for one, (entries, descriptions) in zip(REGISTRIES, before):
            one._entries, one._descriptions = entries, descriptions
        raise


def _is_run_again(old, new):
    """Return whether `old` and `new` come from the same definition in a notebook or an interactive session."""
    old, new = ((getattr(entry, "__module__", None), getattr(entry, "__qualname__", None)) for entry in (old, new))
    return old == new and new[0] == "__main__"


models.add("transformer", "keras_transformer.models.transformer:Transformer", "The encoder-decoder of §3.")
models.add(
    "word_aligned_transformer",
    "keras_transformer.parsing.model:WordAlignedTransformer",
    "For parsing: one cross-attention head per layer sees only the current word (not in the paper).",
)
models.add(
    "marian",
    "keras_transformer.models.marian:MarianTransformer",
    "The Transformer of Marian and OPUS-MT, with attention biases.",
)
positions.add("sinusoidal", "keras_transformer.layers.position:SinusoidalPositions", "Fixed sines and cosines (§3.5).")
positions.add(
    "learned", "keras_transformer.layers.position:LearnedPositions", "One trained vector per position (Table 3, E)."
)
norms.add(
    "post", "keras_transformer.layers.residual:PostNorm", "LayerNorm(x + Dropout(Sublayer(x))), as in the paper (§3.1)."
)
norms.add("pre", "keras_transformer.layers.residual:PreNorm", "x + Dropout(Sublayer(LayerNorm(x))), with a final norm.")
norms.add(
    "marian", "keras_transformer.models.marian:MarianPostNorm", "Like post, but with ε = 1e-5, as in Marian models."
)
attentions.add(
    "full",
    "keras_transformer.layers.attention:MultiHeadAttention",
    "Dot-product attention to all positions (§3.2).",
)
attentions.add(
    "additive",
    "keras_transformer.layers.additive_attention:AdditiveAttention",
    "Attention to all positions with vᵀtanh(W_q q + W_k k) instead of dot products (§3.2.1).",
)
attentions.add(
    "restricted",
    "keras_transformer.layers.restricted_attention:RestrictedAttention",
    "Attention to the nearest attention_window positions only (§4).",
)


def load_catalog():
    """Import the files of `problems/` and `hparams/`, which register their content.

    The two folders are next to the package in a checkout, and inside the package in a wheel. The function imports their
    files by path, so that a user's `problems/` folder cannot shadow them.
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
    """Import a Python file as a module called `name`, and return the module."""
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
