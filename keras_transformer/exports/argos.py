"""Export of a run as an Argos Translate package: a zip file with a CTranslate2 model and a SentencePiece model."""

import json
import shutil

from keras_transformer import __version__
from keras_transformer.conversion.ctranslate2 import convert
from keras_transformer.conversion.weights import load_weights
from keras_transformer.data.language_tags import needs_tags
from keras_transformer.exports.description import atomic_export, describe
from keras_transformer.utils.errors import UserError


def export_argos(run, folder, checkpoint=None, quantization="int8", force=False):
    """Write `translate-SOURCE_TARGET.argosmodel`, a package for Argos Translate.

    Args:
        run: `Run`.
        folder: New directory, which appears only when it is complete.
        checkpoint: "best", "last", "averaged", "ema" or a step (default: the best, or the last if there is no best).
        quantization: One of `conversion.ctranslate2.QUANTIZATIONS`. Argos Translate's own packages use "int8".
        force: Whether to replace an existing export.

    Returns:
        The path of the package.

    Raises:
        UserError: CTranslate2 is not installed or does not support the model, the tokenizer is not a single
            SentencePiece model or has language tags, or the directory cannot be written. Also if the problem is not a
            translation problem.
    """
    tokenizer, problem = run.tokenizer, run.problem
    if run.hparams.model != "transformer" or tokenizer.file_name != "tokenizer.model":
        raise UserError(
            "a package for Argos Translate requires --model=transformer and one SentencePiece model, got "
            f"{run.hparams.model} and {tokenizer.file_name}. Export with --format=huggingface or saved_model."
        )
    if needs_tags(tokenizer.tags):
        raise UserError(
            "a package for Argos Translate cannot contain a model with language tags "
            f"({', '.join(tokenizer.languages)}). Export with --format=ctranslate2."
        )
    if not hasattr(problem, "input_language"):
        raise UserError(
            f"a package for Argos Translate needs a TranslationProblem, and {problem.name} is another kind of problem. "
            "Export with --format=ctranslate2."
        )
    name = f"translate-{problem.input_language}_{problem.output_language}"
    weights, state = load_weights(run, checkpoint)
    description = {"format": "argos", **describe(run, checkpoint, state)}
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    with atomic_export(folder, force, description) as new:
        package = new / "contents" / name
        package.mkdir(parents=True)
        convert(weights, run.hparams, pieces, package / "model", quantization)
        (package / "sentencepiece.model").write_bytes(tokenizer.to_bytes())
        (package / "metadata.json").write_text(json.dumps(metadata(problem), indent=2) + "\n", encoding="utf-8")
        archive = shutil.make_archive(str(new / name), "zip", package.parent, name)
        shutil.move(archive, new / f"{name}.argosmodel")
        shutil.rmtree(new / "contents")
    return folder / f"{name}.argosmodel"


def metadata(problem):
    """Return the contents of metadata.json.

    A problem defines no language names, so the language codes also serve as names.
    """
    source, target = problem.input_language, problem.output_language
    return {
        "package_version": __version__, "argos_version": "1.0", "type": "translate", "from_code": source,
        "from_name": source, "to_code": target, "to_name": target,
    }  # fmt: skip
