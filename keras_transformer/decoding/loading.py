"""Function that loads a translator with a suitable engine. This module does not import Keras."""

from keras_transformer.backend.loading import load_keras
from keras_transformer.decoding.ctranslate2_translator import CTranslate2Translator
from keras_transformer.decoding.engines import choose_engine


def load_translator(
    runs, checkpoint=None, precision="float32", jit_compile=False, *, engine="auto", options=None,
    keras_option=None,
):  # fmt: skip
    """Return a translator for one run or for an ensemble. Import Keras only if the chosen engine is Keras.

    Args:
        runs: List of `Run`s.
        checkpoint, precision, jit_compile: See `Translator.load`.
        engine, options, keras_option: See `choose_engine`.

    Raises:
        UserError: See `Translator.load` and `choose_engine`.
    """
    if choose_engine(engine, runs, checkpoint, precision, jit_compile, options, keras_option) == "ctranslate2":
        return CTranslate2Translator.from_run(runs[0], checkpoint)
    load_keras(optional=False)
    from keras_transformer.decoding.translator import Translator

    return Translator.from_runs(runs, checkpoint, precision, jit_compile)
