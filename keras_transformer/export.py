"""python -m keras_transformer.export: export a trained model for other programs."""

from pathlib import Path

from keras_transformer.backend.loading import check_packages, chosen_backend, load_keras
from keras_transformer.cli.arguments import (
    Parser,
    add_decoding_flags,
    add_precision_flag,
    add_run_flags,
    beam_size,
    positive_int,
    run_command,
    user_path,
)
from keras_transformer.cli.output import report
from keras_transformer.exports.description import check_place, describe
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError, unknown

SEARCH_FLAGS = ("beam_size", "alpha", "nbest", "extra_length", "max_beam_size", "max_source_length")
FORMATS = {
    "saved_model": ("ensemble", "precision", *SEARCH_FLAGS),
    "ctranslate2": ("quantization",),
    "argos": ("quantization",),
    "huggingface": ("push_to_hub",),
    "keras": ("precision",),
}
"""{format: its format-specific flags}."""


def main(arguments):
    """Run the command with a list of arguments."""
    flags = _parse(arguments)
    folder = Path(flags.output_dir)
    check_place(folder, flags.force)
    run = Run.open(flags.run)
    if flags.format == "ctranslate2":
        from keras_transformer.exports.ctranslate2 import POSITIONS, export_ctranslate2

        export_ctranslate2(run, folder, flags.checkpoint, flags.quantization or "float32", flags.force)
        report(f"wrote {folder} for ctranslate2.Translator, which accepts at most {POSITIONS:,} tokens per text")
        return
    if flags.format == "argos":
        from keras_transformer.exports.argos import export_argos

        path = export_argos(run, folder, flags.checkpoint, flags.quantization or "int8", flags.force)
        report(f"wrote {path}: install it with argostranslate.package.install_from_path")
        return
    if flags.format == "huggingface":
        from keras_transformer.exports.hub import check_upload, upload
        from keras_transformer.exports.huggingface import POSITIONS, export_huggingface

        if flags.push_to_hub:
            check_upload(flags.push_to_hub)
        export_huggingface(run, folder, flags.checkpoint, flags.force)
        report(f"wrote {folder} for transformers.MarianMTModel, which accepts at most {POSITIONS:,} tokens per text")
        if flags.push_to_hub:
            report(f"uploaded it to {upload(folder, flags.push_to_hub)}")
        return
    if flags.format == "saved_model":
        then = ", then export with KERAS_BACKEND=tensorflow"
        check_packages("--format=saved_model", "tensorflow", ("tensorflow", "tensorflow-text"), then)
        if chosen_backend() != "tensorflow":
            raise UserError(
                f"the backend for --format=saved_model must be tensorflow, got {chosen_backend()}. "
                "Set KERAS_BACKEND=tensorflow, which can load runs trained with any backend."
            )
    load_keras()
    precision = flags.precision or "float32"
    if flags.format == "keras":
        from keras_transformer.exports.keras_file import MODEL, export_keras

        export_keras(run, folder, flags.checkpoint, precision, flags.force)
        report(
            f"wrote {folder / MODEL}; run `from keras_transformer import Transformer` before keras.saving.load_model"
        )
        return
    from keras_transformer.decoding.search_options import SearchOptions
    from keras_transformer.decoding.translator import Translator
    from keras_transformer.exports.saved_model import export_saved_model

    checkpoints = flags.checkpoint.split(",") if flags.checkpoint else None
    runs = [run, *map(Run.open, flags.ensemble)]
    translator = Translator.from_runs(runs, checkpoints, precision)
    options = {name: value for name in SEARCH_FLAGS if (value := getattr(flags, name)) is not None}
    options.setdefault("max_source_length", translator.hparams.max_length)
    max_beam_size = options.pop("max_beam_size", None)
    models = [describe(one, name) for one in runs for name in checkpoints or [None]]
    export_saved_model(
        translator,
        folder,
        SearchOptions(**options),
        max_beam_size=max_beam_size,
        force=flags.force,
        description={"precision": precision, "models": models},
    )
    report(f"wrote {folder} for tf.saved_model.load and TensorFlow Serving; export.json lists its fixed options")


def _parse(arguments):
    parser = Parser(
        "export",
        "--run=runs/toy_ende-toy --format=saved_model --output_dir=exported",
        "Export a trained model for other programs: TensorFlow, CTranslate2, Argos Translate, Hugging Face, Keras.",
    )
    add_run_flags(parser)
    parser.add_argument("--format", required=True, help=f"{', '.join(FORMATS)}")
    parser.add_argument("--output_dir", type=user_path, required=True, help="new directory for the export")
    parser.add_argument("--force", action="store_true", help="replace an existing export in --output_dir")
    group = parser.add_argument_group("saved_model and keras")
    add_precision_flag(group, default=None)
    group = parser.add_argument_group("saved_model")
    group.add_argument(
        "--ensemble", type=user_path, action="append", default=[], metavar="RUN",
        help="another run with the same vocabulary, as in translate (repeatable)",
    )  # fmt: skip
    add_decoding_flags(group)
    group.add_argument("--nbest", type=beam_size, help="translations per text (default 1)")
    group.add_argument(
        "--max_beam_size", type=beam_size,
        help="maximum beam size of translate_with_options (default 8, or --beam_size if larger)",
    )  # fmt: skip
    group.add_argument(
        "--max_source_length", type=positive_int,
        help="maximum number of tokens per text, including EOS, beyond which texts are cut (default: max_length of "
        "the run)",
    )  # fmt: skip
    group = parser.add_argument_group("huggingface")
    group.add_argument(
        "--push_to_hub", metavar="USER/NAME", help="repository on the hub for the upload, created as private if missing"
    )
    group = parser.add_argument_group("ctranslate2 and argos")
    group.add_argument(
        "--quantization",
        help="data type of the matrices: float32, int8, int8_float32, bfloat16, … (default float32, or int8 for argos)",
    )
    flags = parser.parse_args(arguments)
    if flags.format not in FORMATS:
        raise unknown("format", flags.format, FORMATS)
    for name in dict.fromkeys(name for names in FORMATS.values() for name in names):
        if getattr(flags, name) not in (None, []) and name not in FORMATS[flags.format]:
            takers = " or ".join(format for format, names in FORMATS.items() if name in names)
            raise UserError(f"--{name} requires --format={takers}, got --format={flags.format}. Omit --{name}.")
    return flags


if __name__ == "__main__":
    run_command(main)
