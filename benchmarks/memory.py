"""How much memory an update takes: `python benchmarks/memory.py --json=docs/results/memory.jsonl`.

Each figure is the peak of a process of its own, which loads Keras, builds the model and makes one update of random
tokens: weights, gradients and both slots are there, too. The batch has as many tokens in the source as in the target,
all sequences of one length. On CPU a process may take what is free then; an update that wants more does not fit.
"""

import dataclasses
import itertools

from command_line import Parser, check_flags

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import run_command
from keras_transformer.utils.errors import UserError

WAYS = {
    "whole": {},
    "remat": {"remat": True},
    "accumulate=8": {"accumulate": 8},
    "remat, accumulate=8": {"remat": True, "accumulate": 8},
}
"""Settings of `build_model` that are compared."""


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--hparams", nargs="+", default=["base", "big"], metavar="NAME", help="presets")
    parser.add_argument("--tokens", nargs="+", type=int, default=[4096, 25000], help="of source, of target, per update")
    parser.add_argument("--length", type=int, default=32, help="tokens of a sequence")
    parser.add_argument("--vocab_size", type=int, default=37000)
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_json()
    flags = parser.parse_args(arguments)
    check_flags(flags)
    if flags.length < 1 or min(flags.tokens) < flags.length:
        raise UserError("--tokens and --length: an update holds one sequence at least, and a sequence one token")
    load_keras()
    import keras

    from keras_transformer.config.hparams import load_hparams
    from keras_transformer.runs.manifest import append_row, command, git_revision, machine
    from keras_transformer.training.memory import available_bytes, try_update
    from keras_transformer.training.signals import StopRequest

    updates = [
        (load_hparams(name, batch_tokens=tokens), name, tokens) for name in flags.hparams for tokens in flags.tokens
    ]
    print(f"{keras.backend.backend()}, {flags.precision}, {flags.vocab_size:,} symbols")
    for (hparams, name, tokens), (way, settings) in itertools.product(updates, WAYS.items()):
        problem = {"name": "copy"}
        config = {"model": "transformer", "hparams": dataclasses.asdict(hparams), "problem": problem, "plugins": []}
        shape = (tokens // flags.length, flags.length, flags.length)
        settings, free = {"precision": flags.precision, **settings}, available_bytes()
        found = try_update(settings, config, flags.vocab_size, shape, free, StopRequest())
        if "peak_mb" not in found and found["fits"]:
            raise UserError(f"{name}, {tokens} tokens, {way}: {found['error']}")
        peak = found.get("peak_mb")
        print(f"{name}, {tokens:,} tokens, {way}: {f'{peak:,} MB' if peak else 'does not fit'}", flush=True)
        row = {
            "benchmark": "memory", "backend": keras.backend.backend(), "hparams": name, "tokens": tokens,
            "length": flags.length, "vocab_size": flags.vocab_size, "precision": flags.precision, "way": way,
            "peak_mb": peak, "free_mb": free >> 20,
            "command": command(), "commit": git_revision(), "machine": machine(),
        }  # fmt: skip
        if flags.json:
            append_row(flags.json, row)


if __name__ == "__main__":
    run_command(main)
