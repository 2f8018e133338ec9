"""Training speed of this machine: target tokens a second, beside its matrix-product rate.

    python benchmarks/train_step.py --sizes=tiny,base

Random tokens without padding, the paper's step (dropout, label smoothing, Adam), the median over `--steps` steps.
FLOPs are counted for matrix products alone: 2 for a multiply-add, the backward pass twice the forward.
"""

import argparse
import json
import statistics
import time

import numpy as np

from keras_transformer.startup import load_keras

SIZES = {"tiny": ("tiny", 9_712, 128, 24), "base": ("base", 37_000, 32, 32)}
"""preset, vocabulary, rows, length of source and target"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="tiny,base", help="comma-separated: " + ", ".join(SIZES))
    parser.add_argument("--precisions", default="float32", help="comma-separated: float32, bfloat16, float16")
    parser.add_argument("--steps", type=int, default=10, help="timed steps, after two that are not (default 10)")
    parser.add_argument("--json", help="file for the rows as a JSON list")
    flags = parser.parse_args()
    load_keras()
    rate = matmul_rate()
    print(f"matrix product, float32: {rate / 1e9:,.0f} GFLOP/s\n")
    print(f"{'size':<6}{'precision':<11}{'target tokens/s':>16}{'ms a step':>11}{'GFLOP/s':>9}{'of product':>12}")
    rows = [{"engine": "matmul", "mode": "graph", "precision": "float32", "flops_per_second": rate}]
    for size in flags.sizes.split(","):
        for precision in flags.precisions.split(","):
            row = measure(size, precision, flags.steps)
            rows.append(row)
            print(
                f"{size:<6}{precision:<11}{row['target_tokens_per_second']:>16,.0f}"
                f"{row['seconds_per_step'] * 1e3:>11,.0f}{row['flops_per_second'] / 1e9:>9,.0f}"
                f"{row['flops_per_second'] / rate:>12.0%}"
            )
    if flags.json:
        with open(flags.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=2)


def measure(size, precision, steps):
    """Returns the row of one size and precision."""
    import keras

    import keras_transformer as kt
    from keras_transformer.training.network import PRECISIONS

    preset, vocab_size, rows, length = SIZES[size]
    hparams = kt.hparams(preset)
    began = time.perf_counter()
    policy = keras.dtype_policies.get(PRECISIONS[precision])
    model = kt.Transformer.from_hparams(hparams, vocab_size=vocab_size, dtype=policy)
    model.compile(**kt.compile_arguments(hparams))
    rng = np.random.default_rng(0)
    source, target = rng.integers(4, vocab_size, (2, rows, length)).astype("int32")
    labels = rng.integers(4, vocab_size, (rows, length)).astype("int32")
    weights = np.full((rows, length), 1 / (rows * length), "float32")
    batch = ((source, target), labels, weights)
    seconds = []
    for step in range(steps + 2):
        start = time.perf_counter()
        model.train_on_batch(*batch)
        seconds.append(time.perf_counter() - start)
        if step == 0:
            first = time.perf_counter() - began
    median = statistics.median(seconds[2:])
    return {
        "engine": "keras_transformer", "mode": "graph", "precision": precision, "size": size, "workload": "fixed",
        "target_tokens_per_second": rows * length / median, "seconds_per_step": median,
        "seconds_to_first_step": first,
        "flops_per_second": flops(hparams, vocab_size, rows, length) / median,
    }  # fmt: skip


def flops(hparams, vocab_size, rows, length):
    """FLOPs of one training step on `rows` sources and targets of `length` tokens: its matrix products."""
    projections = 2 * hparams.d_model * hparams.num_heads * (hparams.key_width + hparams.value_width)
    scores = hparams.num_heads * length * (hparams.key_width + hparams.value_width)
    feed_forward = 2 * hparams.d_model * hparams.d_ff
    layer = 3 * (projections + scores) + 2 * feed_forward  # encoder and decoder layer, a source and a target token
    multiply_adds = rows * length * (hparams.num_layers * layer + hparams.d_model * vocab_size)
    return 3 * 2 * multiply_adds


def matmul_rate(size=2048, repeats=20):
    """FLOP/s of a float32 product of two square matrices in the backend, the best of `repeats`: it is a ceiling."""
    import keras
    from keras import ops

    matrix = ops.convert_to_tensor(np.random.default_rng(0).standard_normal((size, size)), dtype="float32")
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        keras.ops.convert_to_numpy(ops.matmul(matrix, matrix)[0, 0])
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


if __name__ == "__main__":
    main()
