"""CTranslate2's process: `decode_ctranslate2.py JOB`, after `decode_ctranslate2.py JOB convert` has written its model.

Two processes, so that the memory of the one that translates is not the conversion's.
"""

import json
import sys
from pathlib import Path

import layout
import protocol

from keras_transformer.config.hparams import HParams
from keras_transformer.data.tokenizers.base import SPECIAL


def convert(job):
    """Write the job's model as CTranslate2's."""
    from keras_transformer.exports.ctranslate2 import convert

    config, weights = layout.read_model(job["model"])
    quantization = None if job["precision"] == "float32" else job["precision"]
    convert(weights, HParams(**config["hparams"]), pieces(config["vocab_size"]), job["folder"], quantization)


def pieces(vocab_size):
    """Return the name of each id: the number itself, but for the special ones."""
    return [*SPECIAL, *map(str, range(len(SPECIAL), vocab_size))]


def make(job):
    import ctranslate2

    translator = ctranslate2.Translator(
        job["folder"], device="cpu", compute_type=job["precision"], inter_threads=1, intra_threads=job["threads"]
    )
    names = pieces(layout.read_model(job["model"])[0]["vocab_size"])
    sources = [[names[i] for i in ids] for ids in job["sources"]]
    ids = {token: i for i, token in enumerate(names)}

    def translate():
        outputs, scores = [None] * len(sources), [None] * len(sources)
        for rows in protocol.batches(sources):
            # Of steps, EOS's included, the longest source of the batch has as many as here.
            steps = len(sources[rows[0]]) + 1 + job["extra_length"]
            results = translator.translate_batch(
                [sources[i] for i in rows], beam_size=job["beam_size"], length_penalty=job["alpha"],
                min_decoding_length=job["forced_length"], max_decoding_length=job["forced_length"] or steps,
                max_input_length=0, return_scores=True,
            )  # fmt: skip
            for i, result in zip(rows, results):
                outputs[i] = [ids[token] for token in result.hypotheses[0]]
                scores[i] = result.scores[0]
        return {"outputs": outputs, "scores": scores}

    return translate


if __name__ == "__main__":
    if sys.argv[2:] == ["convert"]:
        convert(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    else:
        protocol.serve(make)
