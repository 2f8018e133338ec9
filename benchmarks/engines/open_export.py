"""Translate with an exported model, using the library for its format instead of keras_transformer.

    python benchmarks/engines/open_export.py FORMAT EXPORT REQUEST.json ANSWER.json

`consumers.py` writes the request, {"texts": […], "batch": N}, and runs this program. The flag `--python` of
`consumers.py` selects the Python interpreter. The answer contains the translations, the translation time in seconds
(excluding a warm-up batch), and the name and version of the library.
"""

import importlib.metadata
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path


def saved_model(folder):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    serve = tf.saved_model.load(folder).signatures["serving_default"]
    return "tensorflow", lambda texts: [
        text.decode() for text in serve(inputs=tf.constant(texts))["outputs"].numpy().tolist()
    ]


def ctranslate2(folder):
    import ctranslate2
    import sentencepiece

    translator = ctranslate2.Translator(folder)
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(Path(folder) / "tokenizer.model"))
    options = json.loads((Path(folder) / "export.json").read_text("utf-8"))
    search = {name: options[name] for name in ("beam_size", "length_penalty")}

    def translate(texts):
        results = translator.translate_batch(tokenizer.encode(texts, out_type=str), **search)
        return [tokenizer.decode(result.hypotheses[0]) for result in results]

    return "ctranslate2", translate


def argos(folder):
    import argostranslate.package
    import argostranslate.settings
    import argostranslate.translate

    packages = Path(tempfile.mkdtemp())
    argostranslate.settings.package_data_dir, argostranslate.settings.package_dirs = packages, [packages]
    (package,) = Path(folder).glob("*.argosmodel")
    argostranslate.package.install_from_path(package)
    source, target = package.stem.removeprefix("translate-").split("_")
    translation = argostranslate.translate.get_translation_from_codes(source, target)
    inner = translation
    while hasattr(inner, "underlying"):
        inner = inner.underlying
    inner.sentencizer = OneSentence()
    return "argostranslate", lambda texts: [translation.translate(text) for text in texts]


class OneSentence:
    """Sentence splitter that keeps each text whole. The default splitter of Argos Translate requires a download."""

    def split_sentences(self, text):
        return [text]


def huggingface(folder):
    from transformers import MarianMTModel

    return "transformers", generator(MarianMTModel.from_pretrained(folder).eval(), folder)


def onnx(folder):
    from optimum.onnxruntime import ORTModelForSeq2SeqLM

    return "onnxruntime", generator(ORTModelForSeq2SeqLM.from_pretrained(folder), folder)


def generator(model, folder):
    """Return a function that translates a list of texts with a model of Hugging Face Transformers or Optimum."""
    import torch
    from transformers import MarianTokenizer

    tokenizer = MarianTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def translate(texts):
        outputs = model.generate(**tokenizer(texts, return_tensors="pt", padding=True))
        return tokenizer.batch_decode(outputs, skip_special_tokens=True)

    return translate


FORMATS = {each.__name__: each for each in (saved_model, ctranslate2, argos, huggingface, onnx)}


def main(format, folder, request_file, answer_file):
    if importlib.util.find_spec("keras_transformer"):
        sys.exit("keras_transformer is installed here")
    request = json.loads(Path(request_file).read_text("utf-8"))
    texts, size = request["texts"], request["batch"]
    package, translate = FORMATS[format](folder)
    translate(texts[:size])
    began, outputs = time.perf_counter(), []
    for first in range(0, len(texts), size):
        outputs += translate(texts[first : first + size])
    seconds = time.perf_counter() - began
    consumer = f"{package} {importlib.metadata.version(package)}"
    answer = {"outputs": outputs, "seconds": seconds, "consumer": consumer}
    Path(answer_file).write_text(json.dumps(answer), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
