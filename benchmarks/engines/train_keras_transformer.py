"""This project's process: Keras' `fit` on `TokenBatches`, from the store to the update, as `train` does it."""

import layout
import protocol


def make(job):
    from keras_transformer.backend.loading import load_keras

    load_keras()
    import keras
    from workload import training_batches

    from keras_transformer.config.hparams import HParams
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.training.options import PRECISIONS
    from keras_transformer.training.schedule import compile_arguments

    if keras.backend.backend() == "tensorflow":
        protocol.bound_threads(job["threads"])
    config, weights = layout.read_model(job["model"])
    hparams = HParams(**config["hparams"])
    model = Transformer(config["vocab_size"], hparams, dtype=keras.dtype_policies.get(PRECISIONS[job["precision"]]))
    layout.assign_model(model, weights)
    model.compile(**compile_arguments(hparams, jit_compile=job["mode"] != "graph"))
    batches, start = training_batches(job["corpus"]), 0

    def train(updates):
        # Around one epoch, as the other engines go: the next one's batches would be others.
        nonlocal start
        while updates:
            some = min(updates, batches.batches_per_epoch - start)
            history = model.fit(batches.replace(start=start), steps_per_epoch=some, epochs=1, verbose=0)
            start = (start + some) % batches.batches_per_epoch
            updates -= some
        return history.history["loss"][0]

    return protocol.trained(job, train)


if __name__ == "__main__":
    protocol.serve(make)
