"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) in Keras 3.

The public API. Everything is imported on first use: `import keras_transformer` imports no Keras.
"""

import importlib

_LOCATIONS = {
    "problem": "tasks:load_problem",
    "hparams": "hyperparameters:load_hparams",
    "HParams": "hyperparameters:HParams",
    "Problem": "tasks:Problem",
    "TranslationProblem": "tasks:TranslationProblem",
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
    "average_checkpoints": "runs.averaging:average_checkpoints",
    "export_saved_model": "serving.saved_model:export_saved_model",
}
_LIGHT = ("tasks", "hyperparameters", "errors", "registry", "plugins")

__version__ = "0.1.0"
__all__ = sorted(_LOCATIONS)


def __getattr__(name):
    if name not in _LOCATIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _LOCATIONS[name].partition(":")
    if module not in _LIGHT:
        importlib.import_module(f"{__name__}.startup").load_keras()
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    return value


def __dir__():
    return [*globals(), *_LOCATIONS]
