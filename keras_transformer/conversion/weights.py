"""Functions shared by conversions: load the weights of a run, and check which settings an engine supports."""


def load_weights(run, checkpoint=None):
    """Return the weights of a run, {name: array}, and the state of their checkpoint.

    A name is the path of a variable without the name of the model, such as "encoder/layer_1/self_attention/query".

    Args:
        run: `Run`.
        checkpoint: See `Checkpoints.load`.
    """
    arrays, state = run.checkpoints.load(checkpoint, parts=("weights",))
    return {path.partition("/")[2]: array for path, array in arrays["weights"].items()}, state


def first_unsupported(hparams, norms, positions, models=("transformer",)):
    """Return the first setting that an engine does not support, or None.

    Every engine requires full attention and heads of width d_model / num_heads.

    Args:
        hparams: `HParams`.
        norms, positions, models: The values of `norm`, `positions` and `model` that the engine supports.

    Returns:
        (name, value, supported values).
    """
    width = hparams.d_model // hparams.num_heads
    settings = (
        ("model", hparams.model, models),
        ("norm", hparams.norm, norms),
        ("positions", hparams.positions, positions),
        ("encoder_attention", hparams.encoder_attention, ("full",)),
        ("d_k", hparams.key_width, (width,)),
        ("d_v", hparams.value_width, (width,)),
    )
    return next((setting for setting in settings if setting[1] not in setting[2]), None)
