"""Creation of a run directory from a pretrained model."""

from pathlib import Path

from keras_transformer.pretrained.huggingface import WEIGHTS
from keras_transformer.runs.checkpoint import model_arrays
from keras_transformer.runs.manifest import describe_program
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_directory, sha256

PRESET = "opus_mt"


def write_run(pretrained, problem, output_dir):
    """Write a run directory for a pretrained model. Its only checkpoint is at step 0.

    Args:
        pretrained: `PretrainedModel`.
        problem: `Problem` of the run, which determines the languages and the splits that `evaluate` decodes.
        output_dir: New directory, which appears only when it is complete.

    Returns:
        The `Run`.

    Raises:
        UserError: The directory exists or cannot be written.
    """
    output_dir = Path(output_dir)
    if output_dir.exists():
        raise UserError(f"{output_dir} already exists. Choose another --output_dir, or remove it.")
    model = pretrained.build_model()
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with atomic_directory(output_dir) as folder:
        run = Run.configure(folder, problem, PRESET, pretrained.hparams)
        run.create(pretrained.tokenizer)
        run.checkpoints.save(0, {"weights": model_arrays(model), "optimizer": {}}, {})
        run.checkpoints.mark_best(0, {})  # all commands load the best checkpoint by default
        run.write_manifest(
            {
                **describe_program(run, model),
                "converted_from": {"path": str(pretrained.path), "sha256": sha256(pretrained.path / WEIGHTS)},
                "corpus": {},
                "store_files": {},
                "tokenizer_sha256": pretrained.tokenizer.fingerprint,
            }
        )
    return Run.open(output_dir)
