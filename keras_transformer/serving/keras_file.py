"""A run's model as one `.keras` file, with its tokenizer beside it."""

from keras_transformer.files import write_json, written_directory
from keras_transformer.serving.description import DESCRIPTION, describe

MODEL = "model.keras"


def export_keras(run, folder, checkpoint=None, precision="float32"):
    """Writes `model.keras`, which `keras.saving.load_model` opens once this package, and plug-ins, are imported.

    Args:
        run: `Run`.
        folder: The directory, which appears when it is complete.
        checkpoint: "best", "last", "averaged", "ema" or a step; by default the best, or else the last.
        precision: "float32" or "bfloat16".

    Raises:
        UserError: Something of the run is missing, or the place cannot be written.
    """
    model = run.load_model(checkpoint, precision)
    with written_directory(folder) as new:
        model.save(new / MODEL)
        run.tokenizer.save(new)
        said = {"tokenizer_sha256": run.tokenizer.fingerprint, "precision": precision}
        write_json(new / DESCRIPTION, {"format": "keras", **said, **describe(run, checkpoint)})
