"""Compare the outputs and the speed of a run's exports with those of `Translator`.

    python benchmarks/exports.py --run=runs/multi30k --json=docs/results/exports.jsonl

All variants translate a test split:

- `Translator` in float32, as the reference.
- The SavedModel in float32 and bfloat16, in batches of 64 and one by one.
- CTranslate2 with each quantization.
- `engine`: the run without an export, with `--engine=ctranslate2`.

The benchmark reports shares of equal translations. `same` compares with `Translator` in float32, and `same_precision`
with `Translator` in the precision of the export. SavedModels also translate some unusual strings. `awkward` compares
these translations with `Translator` in float32. `same_alone` and `awkward_alone` are the shares for batches of one
text. `max_score_difference` covers only outputs whose tokens are the same as those of `Translator` in the precision of
the export. A SavedModel translates a warm-up batch before the measurement of sentences per second.

CTranslate2 has a different beam search (docs/serving.md), so the benchmark also compares its greedy outputs and its
log-probabilities of the references. The benchmark truncates CTranslate2's outputs to this project's limit, the source
length plus `extra_length`.

`--variants="huggingface float32" --python=PATH` measures the export for Hugging Face transformers. PATH is a Python
interpreter with transformers, PyTorch, sentencepiece and sacremoses. The interpreter does not need this project.
"""

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from command_line import Parser, add_row, megabytes, print_table, timed

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.cli.output import report

QUANTIZATIONS = ("float32", "bfloat16", "int8", "int8_float32")
VARIANTS = (
    "saved_model float32", "saved_model bfloat16", *(f"ctranslate2 {kind}" for kind in QUANTIZATIONS), "engine float32"
)  # fmt: skip
TRANSFORMERS = "huggingface float32"
BATCH = 64
AWKWARD = [
    "", " ", "\u3000 \t", "Two dogs run. " * 170, "日本 😀👩‍👩‍👧!", "e\u0301 \u0301 ﬁ ½ Å",
    "\x00a\x01 \x7f\x1b[0m", "\ufeffA man", "<s> </s> <unk>", "a\u00a0b\u2028c\x85d", "▁ A ▁man",
    b"A man \xff sleeps \xed\xa0\x80", b"\xf0\x9f\x98", b"caf\xc3",
]  # fmt: skip
"""Unusual texts, and bytes that are not UTF-8. `Translator` gets U+FFFD instead of invalid bytes."""


def main(arguments):
    parser = Parser(__doc__)
    parser.add_run()
    parser.add_argument(
        "--sentences", type=positive_int, default=1000, help="number of test sentences (default %(default)s)"
    )
    parser.add_names("--variants", (*VARIANTS, TRANSFORMERS), ",".join(VARIANTS))
    parser.add_argument("--python", help=f"Python interpreter with transformers, for {TRANSFORMERS}")
    flags = parser.parse_args(arguments)
    if TRANSFORMERS in flags.variants and not flags.python:
        parser.error(f"{TRANSFORMERS} requires --python=PATH, an interpreter with transformers and PyTorch")
    load_keras()
    exports, rows = Exports(flags), []
    for variant in flags.variants:
        name, precision = variant.split()
        with tempfile.TemporaryDirectory() as folder:
            found = getattr(exports, name)(Path(folder) / "out", precision)
        rows.append(add_row({
            "benchmark": "exports", "problem": exports.run.config["problem"]["name"], "format": name,
            "precision": precision, "sentences": len(exports.texts), "reference_score": exports.reference.value,
            "score_name": exports.reference.name, **found,
        }, flags.json))  # fmt: skip
        report(f"measured {variant}")
    print_table("exports", rows)


class Exports:
    """Comparison of exports with `Translator`. Each export format has its own method."""

    def __init__(self, flags):
        import keras_transformer as kt
        from keras_transformer.runs.run import Run

        self.run, self.checkpoint, self.python = Run.open(flags.run), flags.checkpoint, flags.python
        pairs = list(self.run.problem.examples("test"))[: flags.sentences]
        self.texts, self.references = (list(side) for side in zip(*pairs))
        self.translator = kt.Translator.load(flags.run, flags.checkpoint)
        readable = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in AWKWARD]
        self.expected = [best for (best,) in self.translator.translate(self.texts)]
        self.awkward = [best for (best,) in self.translator.translate(readable)]
        self.reference = self.score([best.text for best in self.expected])

    def saved_model(self, folder, precision):
        """Measure a SavedModel."""
        import tensorflow as tf

        import keras_transformer as kt

        own, expected = self.translator, self.expected
        if precision != "float32":
            own = kt.Translator.load(str(self.run.path), self.checkpoint, precision)
            expected = [best for (best,) in own.translate(self.texts)]
        _, export_seconds = timed(kt.export_saved_model, own, folder)
        loaded = tf.saved_model.load(folder)
        translate = loaded.signatures["serving_default"]

        def outputs(texts, size):
            """Translate in batches of `size` texts and return (texts, tokens, scores)."""
            found = [], [], []
            for i in range(0, len(texts), size):
                answer = translate(inputs=tf.constant(texts[i : i + size]))
                found[0].extend(text.decode() for text in answer["outputs"].numpy())
                found[1].extend(tuple(ids[ids > 0].tolist()) for ids in answer["tokens"].numpy()[:, 0])
                found[2].extend(answer["scores"].numpy()[:, 0].tolist())
            return found

        outputs(self.texts[:BATCH], BATCH)
        (texts, tokens, scores), seconds = timed(outputs, self.texts, BATCH)
        differences = [
            abs(score - best.score) for ids, score, best in zip(tokens, scores, expected) if ids == best.tokens
        ]
        return {
            "same": share(texts, self.expected), "same_precision": share(texts, expected),
            "same_alone": share(outputs(self.texts, 1)[0], self.expected),
            "awkward": share(outputs(AWKWARD, len(AWKWARD))[0], self.awkward),
            "awkward_alone": share(outputs(AWKWARD, 1)[0], self.awkward),
            "max_score_difference": max(differences), "score": self.score(texts).value,
            "sentences_per_second": len(texts) / seconds, "seconds_to_export": export_seconds,
            "megabytes": megabytes(folder),
        }  # fmt: skip

    def ctranslate2(self, folder, quantization):
        """Measure an export for CTranslate2."""
        import ctranslate2

        from keras_transformer.conversion.length_penalty import length_exponent
        from keras_transformer.exports.ctranslate2 import export_ctranslate2

        tokenizer, hparams = self.run.tokenizer, self.run.hparams
        _, export_seconds = timed(export_ctranslate2, self.run, folder, self.checkpoint, quantization)
        engine = ctranslate2.Translator(str(folder), inter_threads=1)
        sources = [tokenizer.pieces(ids) for ids in tokenizer.encode(self.texts)]
        limits = [len(source) + hparams.extra_length for source in sources]

        def outputs(beam_size, length_penalty=1):
            found = engine.translate_batch(
                sources, max_batch_size=BATCH,
                max_decoding_length=max(limits), beam_size=beam_size, length_penalty=length_penalty,
            )  # fmt: skip
            ids = {piece: i for i, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))}
            best = [result.hypotheses[0][:limit] for result, limit in zip(found, limits)]
            return tokenizer.decode([[ids[piece] for piece in pieces] for pieces in best])

        beam, seconds = timed(outputs, hparams.beam_size, length_exponent(self.run))
        greedy = [best for (best,) in self.translator.translate(self.texts, beam_size=1)]
        targets = [tokenizer.pieces(ids) for ids in tokenizer.encode(self.references)]
        scored = engine.score_batch(sources, targets, max_batch_size=BATCH)
        own = self.translator.score(self.texts, self.references)
        per_token = [
            np.abs(np.subtract(result.log_probs, one.token_log_probabilities)).max() for result, one in zip(scored, own)
        ]
        return {
            "same": share(beam, self.expected), "same_greedy": share(outputs(1), greedy),
            "max_log_probability_difference": float(max(per_token)), "score": self.score(beam).value,
            "sentences_per_second": len(beam) / seconds, "seconds_to_export": export_seconds,
            "megabytes": megabytes(folder),
        }  # fmt: skip

    def engine(self, folder, precision):
        """Measure the run itself with CTranslate2 as the engine."""
        from keras_transformer.conversion.cache import converted_files
        from keras_transformer.decoding.ctranslate2_translator import CTranslate2Translator

        files, convert_seconds = timed(converted_files, self.run, self.checkpoint)
        engine = CTranslate2Translator(lambda: files, self.run.tokenizer, self.run.hparams)
        found, seconds = timed(engine.translate, self.texts)
        beam, greedy = ([best.text for (best,) in found], [best.text for (best,) in engine.translate(self.texts, 1)])
        own, scored = (one.score(self.texts, self.references) for one in (self.translator, engine))
        differences = [abs(a.log_probability - b.log_probability) for a, b in zip(own, scored)]
        return {
            "same": share(beam, self.expected),
            "same_greedy": share(greedy, [best for (best,) in self.translator.translate(self.texts, beam_size=1)]),
            "max_log_probability_difference": max(differences), "score": self.score(beam).value,
            "sentences_per_second": len(beam) / seconds, "seconds_to_export": convert_seconds,
            "megabytes": sum(map(len, files.values())) / 1e6,
        }  # fmt: skip

    def huggingface(self, folder, precision):
        """Measure an export for Hugging Face transformers. The interpreter `--python` runs the model."""
        from keras_transformer.exports.huggingface import export_huggingface

        _, export_seconds = timed(export_huggingface, self.run, folder, self.checkpoint)
        size = megabytes(folder)
        request, answer = folder / "request.json", folder / "answer.json"
        request.write_text(json.dumps({"texts": self.texts, "references": self.references, "batch": BATCH}), "utf-8")
        program = Path(__file__).parent / "engines" / "run_transformers.py"
        subprocess.run([self.python, program, folder, request, answer], check=True)
        found = json.loads(answer.read_text("utf-8"))
        greedy = [best for (best,) in self.translator.translate(self.texts, beam_size=1)]
        own = self.translator.score(self.texts, self.references)
        per_token = [
            np.abs(np.subtract(row, one.token_log_probabilities)).max() for row, one in zip(found["scored"], own)
        ]
        return {
            "same": share(found["beam"], self.expected), "same_greedy": share(found["greedy"], greedy),
            "max_log_probability_difference": float(max(per_token)), "score": self.score(found["beam"]).value,
            "sentences_per_second": found["sentences_per_second"], "seconds_to_export": export_seconds,
            "megabytes": size,
        }  # fmt: skip

    def score(self, outputs):
        """Return the main `Score` of the outputs, the last one in the list from `Problem.score`."""
        return self.run.problem.score(outputs, self.references)[-1]


def share(texts, expected):
    """Return the share of texts that match the expected hypotheses."""
    return sum(text == best.text for text, best in zip(texts, expected)) / len(expected)


if __name__ == "__main__":
    run_command(main)
