"""This project's process: Keras' `fit` on `TokenBatches`, from the store to the update, as `train` does it."""

import time

import layout
import protocol
from workload import training_batches


def make(job):
    from keras_transformer.startup import load_keras

    load_keras()
    import keras

    from keras_transformer.hyperparameters import HParams
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.training.network import PRECISIONS
    from keras_transformer.training.schedule import compile_arguments

    if keras.backend.backend() == "tensorflow":
        protocol.bound_threads(job["threads"])
    config, weights = layout.read_model(job["model"])
    hparams = HParams(**config["hparams"])
    model = Transformer(config["vocab_size"], hparams, dtype=keras.dtype_policies.get(PRECISIONS[job["precision"]]))
    layout.assign_model(model, weights)
    model.compile(**compile_arguments(hparams, jit_compile=job["mode"] == "xla"))
    batches = training_batches(job["corpus"])

    def train(updates):
        history = model.fit(batches, steps_per_epoch=updates, epochs=1, verbose=0)
        batches.start += updates
        return {"loss": history.history["loss"][0]}

    first = train(1)["loss"]
    facts = {"seconds_to_first_step": time.time() - job["started"], "first_loss": first}
    if job["warm_updates"]:
        train(job["warm_updates"])
    return lambda: {**facts, **train(job["updates"])}


if __name__ == "__main__":
    protocol.serve(make)
