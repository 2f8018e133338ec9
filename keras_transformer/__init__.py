"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) in Keras 3.

This module is the public API. It imports names on first use, so `import keras_transformer` does not import Keras.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_transformer import layers as layers
    from keras_transformer.config.hparams import HParams as HParams
    from keras_transformer.config.hparams import load_hparams as hparams  # noqa: F401
    from keras_transformer.config.plugins import load_plugin as load_plugin
    from keras_transformer.config.registry import register_hparams as register_hparams
    from keras_transformer.config.registry import register_layer as register_layer
    from keras_transformer.config.registry import register_model as register_model
    from keras_transformer.config.registry import register_problem as register_problem
    from keras_transformer.decoding.search_options import Sampling as Sampling
    from keras_transformer.decoding.search_options import SearchOptions as SearchOptions
    from keras_transformer.decoding.translator import Hypothesis as Hypothesis
    from keras_transformer.decoding.translator import Translator as Translator
    from keras_transformer.exports.saved_model import export_saved_model as export_saved_model
    from keras_transformer.models.loss import SmoothedCrossEntropy as SmoothedCrossEntropy
    from keras_transformer.models.transformer import Transformer as Transformer
    from keras_transformer.runs.averaging import average_checkpoints as average_checkpoints
    from keras_transformer.tasks.problem import Problem as Problem
    from keras_transformer.tasks.problem import load_problem as problem  # noqa: F401
    from keras_transformer.tasks.translation import TranslationProblem as TranslationProblem
    from keras_transformer.training.options import TrainOptions as TrainOptions
    from keras_transformer.training.schedule import TransformerSchedule as TransformerSchedule
    from keras_transformer.training.schedule import compile_arguments as compile_arguments
    from keras_transformer.training.trainer import train_model as train_model
    from keras_transformer.utils.errors import UserError as UserError
    from keras_transformer.visualization.attention import AttentionMaps as AttentionMaps

_LOCATIONS = {
    "problem": "tasks.problem:load_problem",
    "hparams": "config.hparams:load_hparams",
    "HParams": "config.hparams:HParams",
    "Problem": "tasks.problem:Problem",
    "TranslationProblem": "tasks.translation:TranslationProblem",
    "UserError": "utils.errors:UserError",
    "register_problem": "config.registry:register_problem",
    "register_hparams": "config.registry:register_hparams",
    "register_model": "config.registry:register_model",
    "register_layer": "config.registry:register_layer",
    "load_plugin": "config.plugins:load_plugin",
    "Transformer": "models.transformer:Transformer",
    "TransformerSchedule": "training.schedule:TransformerSchedule",
    "TrainOptions": "training.options:TrainOptions",
    "train_model": "training.trainer:train_model",
    "SmoothedCrossEntropy": "models.loss:SmoothedCrossEntropy",
    "compile_arguments": "training.schedule:compile_arguments",
    "Sampling": "decoding.search_options:Sampling",
    "SearchOptions": "decoding.search_options:SearchOptions",
    "Translator": "decoding.translator:Translator",
    "Hypothesis": "decoding.translator:Hypothesis",
    "AttentionMaps": "visualization.attention:AttentionMaps",
    "average_checkpoints": "runs.averaging:average_checkpoints",
    "export_saved_model": "exports.saved_model:export_saved_model",
    "layers": "layers",
}
_LIGHT = ("tasks.problem", "tasks.translation", "config.hparams", "utils.errors", "config.registry", "config.plugins")
_REGISTERED = ("models.transformer", "models.marian", "parsing.model", "training.schedule", "layers")
"""Modules that register all classes that a `.keras` file may contain, for `keras.models.load_model`."""

__version__ = "0.1.0"
__all__ = sorted(_LOCATIONS)


def __getattr__(name: str) -> Any:
    if name not in _LOCATIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _LOCATIONS[name].partition(":")
    if module not in _LIGHT:
        _register_with_keras()
    value = importlib.import_module(f"{__name__}.{module}")
    value = globals()[name] = getattr(value, attribute) if attribute else value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _register_with_keras() -> None:
    """Import Keras and register the classes that `keras.models.load_model` looks up by name."""
    importlib.import_module(f"{__name__}.backend.loading").load_keras()
    for module in _REGISTERED:
        importlib.import_module(f"{__name__}.{module}")


# If Keras is already imported, registration is cheap, and it allows `keras.models.load_model` to find the classes.
if sys.modules.get("keras") and sys.modules["keras"].backend.backend() in ("tensorflow", "jax"):
    _register_with_keras()
