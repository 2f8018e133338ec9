"""Measure the peak memory of an update with and without options that save memory.

    python benchmarks/memory.py --json=docs/results/memory.jsonl

Each measurement is the peak memory of a separate process, which loads Keras, builds the model and makes one update with
random tokens. It includes the weights, the gradients and both moments of Adam. All sequences have the same length. On a
CPU, an update counts as too large if it needs more memory than is free when the process starts.
"""

import concurrent.futures
import dataclasses
import itertools
import resource

import numpy as np
from command_line import Parser, add_row, in_process, print_table

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.cli.output import report
from keras_transformer.utils.errors import UserError

WAYS = {
    "whole": {},
    "remat": {"remat": True},
    "accumulate=8": {"accumulate": 8},
    "remat, accumulate=8": {"remat": True, "accumulate": 8},
}
"""Options to compare, {name: arguments of `TrainOptions`}."""


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--hparams", nargs="+", default=["base", "big"], metavar="NAME", help="presets")
    parser.add_argument("--tokens", nargs="+", type=positive_int, default=[4096, 25000], help="tokens per side")
    parser.add_argument("--length", type=positive_int, default=32, help="tokens per sequence (default %(default)s)")
    parser.add_argument("--vocab_size", type=positive_int, default=37000)
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16", "float16"))
    flags = parser.parse_args(arguments)
    if min(flags.tokens) < flags.length:
        raise UserError(f"--tokens must be at least --length={flags.length}, got {min(flags.tokens)}.")
    load_keras()
    import keras

    from keras_transformer.config.hparams import load_hparams
    from keras_transformer.training.memory import available_bytes

    rows = []
    for name, tokens, (way, options) in itertools.product(flags.hparams, flags.tokens, WAYS.items()):
        hparams, free = load_hparams(name, batch_tokens=tokens), available_bytes()
        peak = peak_of(hparams, flags.vocab_size, flags.length, {"precision": flags.precision, **options}, free)
        report(f"measured {name}, {tokens:,} tokens, {way}")
        rows.append(add_row({
            "benchmark": "memory", "backend": keras.backend.backend(), "hparams": name, "tokens": tokens,
            "length": flags.length, "vocab_size": flags.vocab_size, "precision": flags.precision, "way": way,
            "peak_mb": peak, "free_mb": free and free >> 20,
        }, flags.json))  # fmt: skip
    print_table("memory", rows)


def peak_of(*update):
    """Run `make_update` in a new process. Return its peak memory in MiB, or None if the update does not fit."""
    try:
        return in_process(make_update, *update)
    except (UserError, concurrent.futures.BrokenExecutor):  # TensorFlow may abort without an exception
        return None


def make_update(hparams, vocab_size, length, options, free):
    """Make one update with random tokens, and return its peak memory in MiB.

    The result is the peak memory of the accelerator or, without an accelerator, of this process.

    Args:
        hparams: `HParams`. The batch has at most `batch_tokens` tokens per side.
        vocab_size: Number of tokens in the vocabulary.
        length: Number of tokens in each sequence.
        options: Arguments of `TrainOptions`.
        free: Memory limit in bytes, or None for no limit.

    Raises:
        UserError: The update does not fit.
    """
    load_keras()
    from keras_transformer.runs.run import Run
    from keras_transformer.training.hardware import peak_memory
    from keras_transformer.training.memory import memory_errors
    from keras_transformer.training.model_building import build_model
    from keras_transformer.training.options import TrainOptions

    if free:
        resource.setrlimit(resource.RLIMIT_DATA, (free, free))
    config = {"hparams": dataclasses.asdict(hparams), "problem": {"name": "copy"}, "plugins": []}
    options = TrainOptions(**options)
    with memory_errors(options):
        model, _ = build_model(Run(None, config), vocab_size, options)
        tokens = np.random.default_rng(0).integers(4, vocab_size, (hparams.batch_tokens // length, length))
        weights = np.full(tokens.shape, 1 / tokens.size, np.float32)
        model.fit((tokens, tokens), tokens, sample_weight=weights, batch_size=len(tokens), verbose=0)
    return max(peak_memory().values())


if __name__ == "__main__":
    run_command(main)
