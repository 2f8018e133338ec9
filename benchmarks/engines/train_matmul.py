"""This machine's rate: products of two large square matrices, the ceiling of any training."""

import protocol

SIDE, PRODUCTS = 2048, 10


def make(job):
    from keras_transformer.backend.loading import load_keras

    load_keras()
    import keras
    import numpy as np
    from keras import ops

    from keras_transformer.backend.compilation import compiled

    if keras.backend.backend() == "tensorflow":
        protocol.bound_threads(job["threads"])
    # Its powers are itself.
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
    protocol.serve(make)
