"""Choice between the translation engines Keras and CTranslate2. This module imports neither."""

import importlib.util
import logging

from keras_transformer.conversion.ctranslate2 import POSITIONS, unsupported_setting
from keras_transformer.decoding.search_options import SearchOptions
from keras_transformer.utils.errors import UserError, install_command, unknown

logger = logging.getLogger(__name__)

ENGINES = ("auto", "keras", "ctranslate2")


def add_engine_flag(parser, default="keras"):
    """Add `--engine` to the flags of a command."""
    parser.add_argument(
        "--engine", choices=ENGINES, default=default,
        help="translation engine, where auto uses ctranslate2 if it is installed and supports the run and all "
        "options, and no GPU is found (default %(default)s)",
    )  # fmt: skip


def choose_engine(
    engine, runs, checkpoint=None, precision="float32", jit_compile=False, options=None, keras_option=None
):
    """Return the engine to use for the models of one or more runs, "keras" or "ctranslate2".

    "auto" chooses CTranslate2 if it is installed, supports the models and options, and detects no GPU. Otherwise,
    "auto" chooses Keras. The function logs a message if "auto" chooses CTranslate2.

    Args:
        engine: One of `ENGINES`.
        runs: List of `Run`s.
        checkpoint, precision, jit_compile: See `Translator.load`.
        options: `SearchOptions`, or None for the defaults. With sampling, "auto" chooses Keras.
        keras_option: Name of another requested option that only Keras supports, or None.

    Raises:
        UserError: The engine is unknown, or it is "ctranslate2" and CTranslate2 is not installed or does not support
            the models and options.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if engine == "keras":
        return engine
    installed = importlib.util.find_spec("ctranslate2") is not None
    reason = keras_option or _unsupported_option(options or SearchOptions(), engine)
    reason = reason or _unsupported(runs, checkpoint, precision, jit_compile)
    if engine == "ctranslate2":
        if not installed:
            install = install_command("ctranslate2")
            raise UserError(f"engine ctranslate2 needs the package ctranslate2. Run {install}, or use engine keras.")
        if reason:
            raise UserError(f"engine ctranslate2 does not support {reason}. Use engine keras.")
        return engine
    if not installed or reason or _sees_gpu():
        return "keras"
    logger.info("translating with CTranslate2 (use --engine=keras for Keras)")
    return "ctranslate2"


def _unsupported_option(options, engine):
    """Return the first search option for which the engine must be Keras, or None."""
    if options.against_repetition:
        return next(iter(options.against_repetition))
    if options.max_source_length and options.max_source_length > POSITIONS:
        return f"max_source_length above {POSITIONS:,}"
    # With CTranslate2, a sample depends on all texts of a call, so the user must select this engine explicitly.
    return "sampling" if options.sampling and engine == "auto" else None


def _unsupported(runs, checkpoint, precision, jit_compile):
    """Return the first option or setting of the runs that CTranslate2 does not support, or None."""
    if len(runs) > 1 or isinstance(checkpoint, (list, tuple)) and len(checkpoint) > 1:
        return "ensembles"
    if precision != "float32":
        return f"precision={precision}"
    if jit_compile is True:
        return "jit_compile"
    (run,) = runs
    if unsupported := unsupported_setting(run.hparams):
        return f"models with {unsupported[0]}={unsupported[1]}"
    if run.hparams.max_length > POSITIONS:
        return f"models with max_length above {POSITIONS:,}"
    return "parsers" if run.tokenizer.constraint else None


def _sees_gpu():
    import ctranslate2

    return ctranslate2.get_cuda_device_count() > 0
