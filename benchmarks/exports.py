"""What a run's exports say beside `Translator`, and how good and fast that is.

    python benchmarks/exports.py --run=runs/multi30k --json=docs/results/exports.jsonl

A test split, and strings that are awkward, are translated by `Translator` in float32, by the SavedModel in float32 and
bfloat16, in batches of 64 texts and of one, and by CTranslate2 in each quantisation. `same` is the share of equal
translations of the split, `same_precision` of those that equal `Translator`'s in the same precision, `awkward` that of
the awkward strings; scores are compared, in one precision, where the tokens are the same; sentences a second are of the
split, after a first batch. CTranslate2's beam search is not ours (see docs/serving.md), so its greedy outputs and the
log-probability of given targets are compared, too. What it says beyond our limit, the source's tokens and
`extra_length`, is left out.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from command_line import Parser, add_row, check_flags, names, number, print_table

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import run_command
from keras_transformer.cli.output import report

QUANTIZATIONS = ("float32", "bfloat16", "int8", "int8_float32")
VARIANTS = (
    "saved_model float32", "saved_model bfloat16", *(f"ctranslate2 {kind}" for kind in QUANTIZATIONS)
)  # fmt: skip
BATCH = 64
AWKWARD = [
    "", " ", "\u3000 \t", "Two dogs run. " * 170, "日本 😀👩‍👩‍👧!", "e\u0301 \u0301 ﬁ ½ Å",
    "\x00a\x01 \x7f\x1b[0m", "\ufeffA man", "<s> </s> <unk>", "a\u00a0b\u2028c\x85d", "▁ A ▁man",
    b"A man \xff sleeps \xed\xa0\x80", b"\xf0\x9f\x98", b"caf\xc3",
]  # fmt: skip
"""Texts, and bytes that are not UTF-8, read with U+FFFD in their place."""


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--run", required=True, help="the run directory")
    parser.add_argument("--checkpoint", help="as of evaluate")
    parser.add_argument("--sentences", type=number, default=1000, help="of the test split (default %(default)s)")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="comma-separated (default %(default)s)")
    parser.add_json()
    flags = parser.parse_args(arguments)
    variants = names("variant", flags.variants, VARIANTS)
    check_flags(flags)
    load_keras()
    work, rows = Work(flags), []
    for variant in variants:
        format, kind = variant.split()
        with tempfile.TemporaryDirectory() as folder:
            measure = work.saved_model if format == "saved_model" else work.ctranslate2
            found = measure(Path(folder) / "out", kind)
        rows.append(add_row({
            "benchmark": "exports", "problem": work.run.config["problem"]["name"], "format": format, "precision": kind,
            "sentences": len(work.texts), "reference_score": work.reference.value, "score_name": work.reference.name,
            **found,
        }, flags.json))  # fmt: skip
        report(f"{variant} is measured")
    print_table("exports", rows)


class Work:
    """The texts, and what `Translator` makes of them."""

    def __init__(self, flags):
        import keras_transformer as kt
        from keras_transformer.runs.run import Run

        self.run, self.checkpoint = Run.open(flags.run), flags.checkpoint
        pairs = list(self.run.problem.examples("test"))[: flags.sentences]
        self.texts, self.references = (list(side) for side in zip(*pairs))
        self.translator = kt.Translator.load(flags.run, flags.checkpoint)
        readable = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in AWKWARD]
        self.expected = [best for (best,) in self.translator.translate(self.texts)]
        self.awkward = [best for (best,) in self.translator.translate(readable)]
        self.reference = self._score([best.text for best in self.expected])

    def saved_model(self, folder, precision):
        """Return the figures of a SavedModel."""
        import tensorflow as tf

        import keras_transformer as kt

        own, expected = self.translator, self.expected
        if precision != "float32":
            own = kt.Translator.load(str(self.run.path), self.checkpoint, precision)
            expected = [best for (best,) in own.translate(self.texts)]
        began = time.monotonic()
        kt.export_saved_model(own, folder)
        exported = time.monotonic() - began
        loaded = tf.saved_model.load(folder)
        translate = loaded.signatures["serving_default"]

        def texts_and_scores(texts, size):
            found = [], [], []
            for i in range(0, len(texts), size):
                answer = translate(inputs=tf.constant(texts[i : i + size]))
                found[0].extend(text.decode() for text in answer["outputs"].numpy())
                found[1].extend(tuple(ids[ids > 0].tolist()) for ids in answer["tokens"].numpy()[:, 0])
                found[2].extend(answer["scores"].numpy()[:, 0].tolist())
            return found

        texts_and_scores(self.texts[:BATCH], BATCH)
        began = time.monotonic()
        texts, tokens, scores = texts_and_scores(self.texts, BATCH)
        seconds = time.monotonic() - began
        alone, _, _ = texts_and_scores(self.texts, 1)
        awkward, _, _ = texts_and_scores(AWKWARD, len(AWKWARD))
        one_by_one, _, _ = texts_and_scores(AWKWARD, 1)
        differences = [
            abs(score - best.score) for ids, score, best in zip(tokens, scores, expected) if ids == best.tokens
        ]
        return {
            "same": self._same(texts), "same_precision": _share(texts, expected), "same_alone": self._same(alone),
            "awkward": _share(awkward, self.awkward), "awkward_alone": _share(one_by_one, self.awkward),
            "max_score_difference": max(differences), "score": self._score(texts).value,
            "sentences_per_second": len(texts) / seconds, "seconds_to_export": exported, "megabytes": _size(folder),
        }  # fmt: skip

    def ctranslate2(self, folder, quantization):
        """Return the figures of CTranslate2."""
        import ctranslate2

        from keras_transformer.exports.ctranslate2 import export_ctranslate2

        tokenizer, hparams = self.run.tokenizer, self.run.hparams
        began = time.monotonic()
        export_ctranslate2(self.run, folder, self.checkpoint, quantization)
        exported = time.monotonic() - began
        engine = ctranslate2.Translator(str(folder), inter_threads=1)
        sources = [tokenizer.pieces(ids) for ids in tokenizer.encode(self.texts)]
        limits = [len(source) + hparams.extra_length for source in sources]
        options = {
            "suppress_sequences": [["<pad>"], ["<s>"]],
            "max_batch_size": BATCH,
            "max_decoding_length": max(limits),
        }

        def outputs(**search):
            found = engine.translate_batch(sources, **options, **search)
            ids = {piece: i for i, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))}
            best = [result.hypotheses[0][:limit] for result, limit in zip(found, limits)]
            return tokenizer.decode([[ids[piece] for piece in pieces] for pieces in best])

        began = time.monotonic()
        beam = outputs(beam_size=hparams.beam_size, length_penalty=hparams.alpha)
        seconds = time.monotonic() - began
        greedy = [best.text for (best,) in self.translator.translate(self.texts, beam_size=1)]
        targets = [tokenizer.pieces(ids) for ids in tokenizer.encode(self.references)]
        scored = engine.score_batch(sources, targets, max_batch_size=BATCH)
        own = self.translator.score(self.texts, self.references)
        per_token = [
            np.abs(np.subtract(result.log_probs, one.token_log_probabilities)).max() for result, one in zip(scored, own)
        ]
        return {
            "same": self._same(beam), "same_greedy": _share(outputs(beam_size=1), greedy),
            "max_log_probability_difference": float(max(per_token)), "score": self._score(beam).value,
            "sentences_per_second": len(beam) / seconds, "seconds_to_export": exported, "megabytes": _size(folder),
        }  # fmt: skip

    def _same(self, texts):
        return _share(texts, [best.text for best in self.expected])

    def _score(self, outputs):
        return self.run.problem.score(outputs, self.references)[-1]


def _share(texts, expected):
    """Share of the texts that are as expected: texts, or hypotheses."""
    expected = [getattr(one, "text", one) for one in expected]
    return sum(map(str.__eq__, texts, expected)) / len(expected)


def _size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


if __name__ == "__main__":
    run_command(main)
