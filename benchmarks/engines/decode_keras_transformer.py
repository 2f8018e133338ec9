"""This project's process: `Translator.translate`, texts in and texts out, as a user calls it."""

import layout
import protocol


def make(job):
    from keras_transformer.backend.loading import load_keras

    load_keras()
    import keras

    from keras_transformer.config.hparams import HParams
    from keras_transformer.data.tokenizers.base import EOS
    from keras_transformer.data.tokenizers.loading import load_tokenizer
    from keras_transformer.decoding.translator import Translator
    from keras_transformer.models.transformer import Transformer

    if keras.backend.backend() == "tensorflow":
        protocol.bound_threads(job["threads"])
    config, weights = layout.read_model(job["model"])
    hparams = HParams(**config["hparams"])
    model = Transformer(config["vocab_size"], hparams, dtype=job["precision"])
    layout.assign_model(model, weights)
    translator = Translator(model, load_tokenizer(job["tokenizer"]), hparams, jit_compile=job["mode"] == "xla")
    arguments = {name: job[name] for name in ("beam_size", "alpha", "extra_length")}
    if job["min_length"]:
        arguments["min_length"] = job["min_length"]

    def translate():
        best = [hypotheses[0] for hypotheses in translator.translate(job["texts"], nbest=1, **arguments)]
        outputs = [[i for i in one.tokens if i != EOS] for one in best]
        return {"outputs": outputs, "scores": [one.score for one in best]}

    return translate


if __name__ == "__main__":
    protocol.serve(make)
