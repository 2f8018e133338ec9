"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) in Keras 3.

The public API. Everything is imported on first use: `import keras_transformer` imports no Keras.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_transformer import layers as layers
    from keras_transformer.decoding.translator import Hypothesis as Hypothesis
    from keras_transformer.decoding.translator import Translator as Translator
    from keras_transformer.errors import UserError as UserError
    from keras_transformer.hyperparameters import HParams as HParams
    from keras_transformer.hyperparameters import load_hparams as hparams  # noqa: F401
    from keras_transformer.models.loss import SmoothedCrossEntropy as SmoothedCrossEntropy
    from keras_transformer.models.transformer import Transformer as Transformer
    from keras_transformer.pictures.attention_maps import AttentionMaps as AttentionMaps
    from keras_transformer.plugins import load_plugin as load_plugin
    from keras_transformer.registry import register_hparams as register_hparams
    from keras_transformer.registry import register_layer as register_layer
    from keras_transformer.registry import register_model as register_model
    from keras_transformer.registry import register_problem as register_problem
    from keras_transformer.runs.averaging import average_checkpoints as average_checkpoints
    from keras_transformer.serving.saved_model import export_saved_model as export_saved_model
    from keras_transformer.tasks import Problem as Problem
    from keras_transformer.tasks import load_problem as problem  # noqa: F401
    from keras_transformer.training.schedule import TransformerSchedule as TransformerSchedule
    from keras_transformer.training.schedule import compile_arguments as compile_arguments
    from keras_transformer.translation import TranslationProblem as TranslationProblem

_LOCATIONS = {
    "problem": "tasks:load_problem",
    "hparams": "hyperparameters:load_hparams",
    "HParams": "hyperparameters:HParams",
    "Problem": "tasks:Problem",
    "TranslationProblem": "translation:TranslationProblem",
    "UserError": "errors:UserError",
    "register_problem": "registry:register_problem",
    "register_hparams": "registry:register_hparams",
    "register_model": "registry:register_model",
    "register_layer": "registry:register_layer",
    "load_plugin": "plugins:load_plugin",
    "Transformer": "models.transformer:Transformer",
    "TransformerSchedule": "training.schedule:TransformerSchedule",
    "SmoothedCrossEntropy": "models.loss:SmoothedCrossEntropy",
    "compile_arguments": "training.schedule:compile_arguments",
    "Translator": "decoding.translator:Translator",
    "Hypothesis": "decoding.translator:Hypothesis",
    "AttentionMaps": "pictures.attention_maps:AttentionMaps",
    "average_checkpoints": "runs.averaging:average_checkpoints",
    "export_saved_model": "serving.saved_model:export_saved_model",
    "layers": "layers",
}
_LIGHT = ("tasks", "translation", "hyperparameters", "errors", "registry", "plugins")
_REGISTERED = ("models.transformer", "training.schedule", "layers")
"""Modules which import every class that a `.keras` file may name, so that `keras.models.load_model` finds it."""

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
    importlib.import_module(f"{__name__}.startup").load_keras()
    for module in _REGISTERED:
        importlib.import_module(f"{__name__}.{module}")


# After `import keras` registration costs little, so there `import keras_transformer` is enough to load a model.
if sys.modules.get("keras") and sys.modules["keras"].backend.backend() in ("tensorflow", "jax"):
    _register_with_keras()
