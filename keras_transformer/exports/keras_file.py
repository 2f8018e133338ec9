"""Export of a run's model as a `.keras` file, together with its tokenizer."""

from keras_transformer.exports.description import atomic_export, describe

MODEL = "model.keras"


def export_keras(run, folder, checkpoint=None, precision="float32", force=False):
    """Write `model.keras`, which `keras.saving.load_model` can load after `from keras_transformer import Transformer`.

    Args:
        run: `Run`.
        folder: New directory, which appears only when it is complete.
        checkpoint: "best", "last", "averaged", "ema" or a step (default: the best, or the last if there is no best).
        precision: "float32" or "bfloat16".
        force: Whether to replace an existing export.

    Raises:
        UserError: The run is incomplete, or the directory exists or cannot be written.
    """
    arrays, state = run.checkpoints.load(checkpoint, parts=("weights",))
    model = run.make_model(arrays["weights"], precision)
    description = {"format": "keras", "precision": precision, **describe(run, checkpoint, state)}
    with atomic_export(folder, force, description) as new:
        model.save(new / MODEL)
        run.tokenizer.save(new)
