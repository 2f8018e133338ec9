"""Engine keras_transformer (this project): training with `fit`, translation of texts with `Translator.translate`.

The task `matmul` measures the speed of the machine with products of two large square matrices.
"""

import protocol

SIDE, PRODUCTS = 2048, 10


def load(job, dtype=None):
    """Load the backend and the model of a job. Return (model, `HParams`)."""
    start(job)
    from keras_transformer.config.hparams import HParams
    from keras_transformer.models.transformer import Transformer

    vocab_size, hparams, weights = protocol.read_model(job["model"])
    hparams = HParams(**hparams)
    model = Transformer(vocab_size, hparams, dtype=dtype or job["precision"])
    for name, variable in protocol.variables_of(model):
        variable.assign(weights[name])
    return model, hparams


def start(job):
    """Load the backend. On TensorFlow, set the job's number of threads."""
    from keras_transformer.backend.loading import load_keras

    load_keras()
    import keras

    if keras.backend.backend() == "tensorflow":
        protocol.limit_threads(job["threads"])


def train(job):
    start(job)
    import keras
    from workload import training_batches

    from keras_transformer.training.options import PRECISIONS
    from keras_transformer.training.schedule import compile_arguments

    model, hparams = load(job, keras.dtype_policies.get(PRECISIONS[job["precision"]]))
    model.compile(**compile_arguments(hparams, jit_compile=job["mode"] != "graph"))
    batches, start_of_next = training_batches(job["corpus"]), 0

    def updates(count):
        # Repeat the batches of the first epoch, as the other engines do. A second epoch would have different batches.
        nonlocal start_of_next
        while count:
            some = min(count, batches.batches_per_epoch - start_of_next)
            history = model.fit(batches.replace(start=start_of_next), steps_per_epoch=some, epochs=1, verbose=0)
            start_of_next = (start_of_next + some) % batches.batches_per_epoch
            count -= some
        return history.history["loss"][0]

    return protocol.training(job, updates)


def decode(job):
    model, hparams = load(job)
    from keras_transformer.data.tokenizers.base import EOS
    from keras_transformer.data.tokenizers.loading import load_tokenizer
    from keras_transformer.decoding.translator import Translator

    translator = Translator(model, load_tokenizer(job["tokenizer"]), hparams, jit_compile=job["mode"] == "xla")
    options = {name: job[name] for name in ("beam_size", "alpha", "extra_length")}
    if job["min_length"]:
        options["min_length"] = job["min_length"]

    def translate():
        best = [hypotheses[0] for hypotheses in translator.translate(job["texts"], nbest=1, **options)]
        outputs = [[i for i in hypothesis.tokens if i != EOS] for hypothesis in best]
        return {"outputs": outputs, "scores": [hypothesis.score for hypothesis in best]}

    return translate


def matmul(job):
    start(job)
    import numpy as np
    from keras import ops

    from keras_transformer.backend.compilation import compiled

    # All powers of this matrix are equal, so values neither grow nor vanish.
    x = ops.cast(ops.convert_to_tensor(np.full((SIDE, SIDE), 1 / SIDE, "float32")), job["precision"])

    def powers(x):
        y = x
        for _ in range(PRODUCTS):
            y = ops.matmul(y, x)
        return y

    powers = compiled(powers)

    def multiply():
        ops.convert_to_numpy(ops.cast(powers(x)[0, 0], "float32"))
        return {"flops": 2 * SIDE**3 * PRODUCTS}

    multiply()
    return multiply


if __name__ == "__main__":
    protocol.serve(train=train, decode=decode, matmul=matmul)
