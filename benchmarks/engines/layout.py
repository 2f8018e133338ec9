"""A model's weights in a file that every engine reads: one .npz of plain names, without pickle."""

import json

import numpy as np

CONFIG = "config"
SEEDS = "seed_generator_state"


def write_model(path, model):
    """Write a `Transformer`: its vocabulary's size, its hparams, and each variable but the states of seeds.

    Args:
        path: The file, with the suffix .npz.
        model: `Transformer`.
    """
    config = {"vocab_size": model.vocab_size, "hparams": model.get_config()["hparams"]}
    arrays = {name: np.asarray(variable, dtype="float32") for name, variable in _variables(model)}
    np.savez(path, **{CONFIG: np.array(json.dumps(config))}, **arrays)


def read_model(path):
    """Return the ({"vocab_size", "hparams"}, weights) of a file; an array of weights is read when it is asked for."""
    weights = np.load(path)
    return json.loads(str(weights[CONFIG])), weights


def assign_model(model, weights):
    """Gives a `Transformer` the weights of a file, one after the other, in its own precision."""
    for name, variable in _variables(model):
        variable.assign(weights[name])


def _variables(model):
    """Yield (name, variable): the path without the model's own name, "encoder/layer_1/self_attention/query"."""
    for variable in model.variables:
        if not variable.path.endswith(SEEDS):
            yield variable.path.partition("/")[2], variable
