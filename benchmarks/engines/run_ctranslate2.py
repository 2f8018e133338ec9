"""Engine CTranslate2: beam search with the weights and the token ids of this project.

The task `convert` writes the model in CTranslate2's format. It runs in a separate process, so that the measured memory
excludes the conversion.
"""

import protocol

from keras_transformer.config.hparams import HParams
from keras_transformer.data.tokenizers.base import SPECIAL


def convert(job):
    from keras_transformer.conversion import ctranslate2

    vocab_size, hparams, weights = protocol.read_model(job["model"])
    ctranslate2.convert(weights, HParams(**hparams), pieces(vocab_size), job["folder"], job["precision"])


def pieces(vocab_size):
    """Return a string for each token id: the name of a special token, or the id itself in decimal digits."""
    return [*SPECIAL, *map(str, range(len(SPECIAL), vocab_size))]


def decode(job):
    import ctranslate2

    translator = ctranslate2.Translator(
        job["folder"], device="cpu", compute_type=job["precision"], inter_threads=1, intra_threads=job["threads"]
    )
    names = pieces(protocol.read_model(job["model"])[0])
    sources = [[names[i] for i in ids] for ids in job["sources"]]
    ids = {token: i for i, token in enumerate(names)}

    def translate():
        outputs, scores = [None] * len(sources), [None] * len(sources)
        for rows in protocol.batches_of(sources):
            # This project limits the output length per sentence. CTranslate2 has one limit per batch, so use the limit
            # of the longest source.
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
    protocol.serve(convert=convert, decode=decode)
