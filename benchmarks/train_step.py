"""Speed of training: this project beside PyTorch, OpenNMT-tf and keras-hub, and this machine's matrix products.

    python benchmarks/train_step.py --raw_dir=CORPORA --json=docs/results/train_step.jsonl
    python benchmarks/train_step.py --engines=keras_transformer --sizes=tiny
    python benchmarks/train_step.py --check          # not how fast they are, but whether they compute the same
    KERAS_BACKEND=jax python benchmarks/train_step.py --engines=keras_transformer --device=gpu --sizes=base,big \
        --precisions=bfloat16 --workloads=fixed,wmt --batch_tokens=25000

`fixed`: random tokens without padding, a batch of `--batch_tokens` source and target tokens each, all sequences of one
length. `multi30k`: Multi30k's training pairs in the batches of the preset, in all turns together a quarter of an epoch;
this project reads them from the prepared store, the others have them in memory as arrays. `wmt`: random tokens in
sequences as long as WMT's.

Every engine makes the paper's step with the same weights to begin with: post-norm, dropout after embedding and
sublayers alone, label smoothing 0.1 (OpenNMT-tf's leaves the label out), Adam with the same rates, on the same
batches. All that use TensorFlow have its oneDNN operations, which older releases and some processors must be told to
take. Each has a process of its own with `--threads` threads; all take turns, `--repeats` times, so that other load on
the machine falls on all alike. A mode that is slower than the engine's other one leaves after a first turn, unless
another workload runs in it. Peers compute in float32; with `--peers_bfloat16` then also in bfloat16, in turns of their
own. What counts is the median, and of two engines the median of the turns' ratios. The measure is a peer in float32,
in `fixed` in its fastest mode. Target tokens are real ones, not padding. Operations are counted for matrix products
alone: 2 for a multiply-add, the backward pass twice the forward, padding to a batch's own longest sequences included.
Memory is the most that was resident in the process, in MB of 10⁶ bytes. The seconds to the first step begin with the
process; no other one computes then.
"""

import collections
import dataclasses
import math
import statistics
import sys
import tempfile
from pathlib import Path

import peers
from command_line import Parser, add_row, check_flags, names, number, print_table

from keras_transformer.backend.devices import cpu_has_bfloat16
from keras_transformer.backend.loading import chosen_backend, load_keras
from keras_transformer.cli.arguments import run_command
from keras_transformer.cli.output import report
from keras_transformer.utils.errors import UserError

OURS, PRODUCT = "keras_transformer", "matmul"
MODES = {
    "opennmt_tf": {"float32": ("graph", "xla")},
    "pytorch": {"float32": ("eager", "compile"), "bfloat16": ("eager", "compile")},
    "keras_hub": {"float32": ("graph", "xla"), "bfloat16": ("graph",)},
}
OUR_MODES = {
    "tensorflow": {"float32": ("graph", "xla"), "bfloat16": ("graph",)},
    "jax": {"float32": ("jax",), "bfloat16": ("jax",)},
}
"""How engines run, by precision; beside the workload `fixed` only the first, which takes any shape but on JAX."""
PEERS = tuple(MODES)
PRECISIONS = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Size:
    """A model's size: preset, symbols, and of `fixed` the tokens of a sequence, of a batch, and updates a turn."""

    preset: str
    vocab_size: int
    length: int
    batch_tokens: int
    updates: int


SIZES = {
    "tiny": Size("tiny", 9_712, 24, 128 * 24, 6),
    "base": Size("base", 37_000, 32, 32 * 32, 2),
    "big": Size("big", 37_000, 32, 32 * 32, 2),
}
WORKLOADS = ("fixed", "multi30k", "wmt")
SIZED = {"fixed": SIZES, "multi30k": ("tiny",), "wmt": SIZES}
"""Which sizes a workload is for."""
BATCHES, WARM_UPDATES = 60, 2
"""Of random tokens in an epoch, of `wmt` about; before the first turn, and more where each shape is compiled."""
CHECK = Size("tiny", 60, 0, 500, 1)
TOLERANCE = 1e-3
"""Greatest difference of two engines' losses, in nats."""


def main(arguments):
    flags = read_flags(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if flags.check:
            return check(flags, Path(folder))
        rows = []
        for size in flags.sizes:
            for found in measured(size, flags, Path(folder) / size):
                rows += [add_row(row, flags.json) for row in found]
    print_table("training", rows)


def read_flags(arguments):
    """Return the flags; names in lists.

    Raises:
        UserError: A flag or a name is wrong.
    """
    parser = Parser(__doc__)
    parser.add_argument("--engines", default=",".join((OURS, *PEERS)), help="comma-separated (default %(default)s)")
    parser.add_argument("--sizes", default="tiny,base", help=f"of {', '.join(SIZES)} (default %(default)s)")
    parser.add_argument("--precisions", help="comma-separated (default float32, and bfloat16 where a device has it)")
    parser.add_argument("--peers_bfloat16", action="store_true", help="others in bfloat16, too: about twice as long")
    parser.add_argument("--workloads", help="of fixed, multi30k, wmt (default fixed, and with --raw_dir multi30k)")
    parser.add_argument("--raw_dir", help="folder with the corpus of Multi30k")
    parser.add_argument("--data_dir", default="data", help="folder of prepared corpora (default %(default)s)")
    parser.add_argument("--batch_tokens", type=number, help="of source, of target, in fixed and wmt")
    parser.add_argument("--repeats", type=number, default=3, help="turns (default %(default)s)")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_machine()
    parser.add_argument("--check", action="store_true", help="compare what they compute; exits with 1 if it differs")
    parser.add_json()
    flags = parser.parse_args(arguments)
    flags.modes = {OURS: OUR_MODES[chosen_backend()], **MODES}
    workloads = flags.workloads or ("fixed,multi30k" if flags.raw_dir else "fixed")
    has_all = flags.device == "gpu" or cpu_has_bfloat16()
    precisions = flags.precisions or ",".join(PRECISIONS if has_all else PRECISIONS[:1])
    for name, text, known in (
        ("engines", flags.engines, flags.modes), ("sizes", flags.sizes, SIZES),
        ("precisions", precisions, PRECISIONS), ("workloads", workloads, WORKLOADS),
    ):  # fmt: skip
        setattr(flags, name, names(name.removesuffix("s"), text, known))
    flags.precisions.sort(key=PRECISIONS.index)
    if flags.engines != [OURS] and "float32" not in flags.precisions:
        raise UserError("other engines are the measure in float32: add it to --precisions, or --engines=" + OURS)
    if flags.peers_bfloat16 and "bfloat16" not in flags.precisions:
        raise UserError("--peers_bfloat16 needs bfloat16 in --precisions")
    if flags.check and OURS not in flags.engines:
        raise UserError(f"--check compares other engines with this one: add {OURS} to --engines")
    if "multi30k" in flags.workloads and not flags.raw_dir:
        raise UserError("the workload multi30k needs the corpus: --raw_dir=FOLDER")
    if flags.device == "gpu" and (flags.engines != [OURS] or chosen_backend() != "jax"):
        raise UserError("--device=gpu measures this project alone, on JAX: KERAS_BACKEND=jax, --engines=" + OURS)
    check_flags(flags)
    return flags


@dataclasses.dataclass(frozen=True)
class Workload:
    """What engines train on, in files that they read.

    Attributes:
        name: One of `WORKLOADS`.
        job: What engines are told.
        tokens: Real target tokens of each batch.
        flops: Operations of an update with each batch.
    """

    name: str
    job: dict
    tokens: list
    flops: list

    def job_of(self, mode):
        """Return the job of an engine in this mode. If it compiles shapes, it meets all of them before it is timed."""
        every_shape = mode == "jax" and self.name != "fixed"
        return {**self.job, "warm_updates": len(self.tokens)} if every_shape else self.job

    def of_turn(self, turn, mode):
        """Return the target tokens and operations of a turn, counted from 0."""
        before = 1 + self.job_of(mode)["warm_updates"]
        first = before + turn * (1 + self.job["updates"]) + 1
        numbers = [i % len(self.tokens) for i in range(first, first + self.job["updates"])]
        return sum(self.tokens[i] for i in numbers), sum(self.flops[i] for i in numbers)


def workload(name, size, flags, folder, **hparams):
    """Write the files of a `Workload` of one size. Return the workload."""
    load_keras()
    import numpy as np
    from engines.arrays import write_batches
    from engines.layout import write_model
    from engines.workload import training_batches

    import keras_transformer as kt

    folder.mkdir(parents=True)
    vocab_size = size.vocab_size
    hparams = kt.hparams(size.preset, **hparams)
    batch_tokens = flags.batch_tokens or size.batch_tokens
    if name == "multi30k":
        problem = kt.problem("multi30k_ende", data_dir=flags.data_dir, raw_dir=flags.raw_dir)
        problem.prepare()
        vocab_size = problem.tokenizer.vocab_size
        corpus = {
            "problem": "multi30k_ende", "data_dir": flags.data_dir, "raw_dir": flags.raw_dir,
            "hparams": size.preset, "batch_tokens": hparams.batch_tokens,
        }  # fmt: skip
    else:
        lengths = "wmt" if name == "wmt" else size.length
        corpus = {"lengths": lengths, "vocab_size": vocab_size, "batch_tokens": batch_tokens, "batches": BATCHES}
    batches = training_batches(corpus).replace(few_shapes=False)
    model = kt.Transformer.from_hparams(hparams, vocab_size=vocab_size)
    write_model(folder / "model.npz", model)
    epoch = [batches[i] for i in range(batches.batches_per_epoch)]
    write_batches(folder / "batches.npz", [(*inputs, labels) for inputs, labels, _ in epoch])
    updates = math.ceil(len(epoch) / 4 / flags.repeats) if name == "multi30k" else size.updates
    job = {
        "model": str(folder / "model.npz"), "batches": str(folder / "batches.npz"), "corpus": corpus,
        "updates": updates, "warm_updates": WARM_UPDATES, "threads": flags.threads, "device": flags.device,
    }  # fmt: skip
    return Workload(
        name, job, [int(np.count_nonzero(labels)) for _, labels, _ in epoch],
        [model.update_flops(*source.shape, labels.shape[1]) for (source, _), labels, _ in epoch],
    )  # fmt: skip


def measured(name, flags, folder):
    """Yield the records of one size in lists: with the peers in float32, and with those in bfloat16 if asked for."""
    size = SIZES[name]
    workloads = {
        known: workload(known, size, flags, folder / known) for known in flags.workloads if name in SIZED[known]
    }
    products = [("fixed", PRODUCT, precision, "") for precision in dict.fromkeys(("float32", *flags.precisions))]

    def variants(engines, precisions):
        return [
            (known, engine, precision, mode)
            for known in workloads
            for precision in precisions
            for engine in engines
            for mode in flags.modes[engine].get(precision, ())[: None if known == "fixed" else 1]
        ]

    def records(chosen, rounds, left):
        return [
            record(name, variant, workloads, [left] if variant in left else rounds, fastest, flags)
            for variant in chosen
        ]

    ours, others = ([one for one in flags.engines if (one == OURS) is mine] for mine in (True, False))
    chosen = variants(ours, flags.precisions) + variants(others, ["float32"])
    rounds, left = turns(products + chosen, workloads, flags, folder / "together")
    fastest = fastest_peers(rounds)
    yield records(chosen + products, rounds, left)
    if flags.peers_bfloat16 and (chosen := variants(others, ["bfloat16"])):
        measure = [(known, engine, "float32", mode) for (known, engine), mode in fastest.items()]
        yield records(chosen, *turns(products + measure + chosen, workloads, flags, folder / "bfloat16"))


def turns(variants, workloads, flags, folder):
    """Has engines take turns.

    Of an engine that runs in several modes only the fastest one of a first turn stays, and the first mode where there
    is another workload, which runs in it: all of them would take long, and not fit into memory together.

    Returns:
        [{variant: {"seconds", "tokens", "flops", …}}], a dictionary for each turn, and one of those that did not stay.
    """
    processes, rounds, left, first = {}, [], {}, collections.Counter()

    def repeat(variant, turn):
        known, engine, _, mode = variant
        answer = processes[variant].repeat()
        if engine != PRODUCT:
            answer["tokens"], answer["flops"] = workloads[known].of_turn(turn, mode)
        return answer

    try:
        for number, variant in enumerate(variants):
            known, engine, precision, mode = variant
            report(f"loading {' '.join(filter(None, variant))}")
            job = {"threads": flags.threads, "device": flags.device} if engine == PRODUCT else (
                workloads[known].job_of(mode)
            )  # fmt: skip
            processes[variant] = peers.Process(
                "train", engine, precision, mode, job, flags.environments, folder / str(number)
            )
            rivals = [one for one in processes if one[:3] == variant[:3] and engine != PRODUCT]
            if len(rivals) > 1:
                found = {one: repeat(one, first[one]) for one in rivals}
                first.update(rivals)
                slower = max(found, key=lambda one: found[one]["seconds"])
                if len(workloads) == 1 or slower[3] != flags.modes[engine][precision][0]:
                    left[slower] = found[slower]
                    processes.pop(slower).close()
        for turn in range(flags.repeats):
            # There and back: whoever is first after another one's turn is not always the same.
            order = list(processes) if turn % 2 else list(processes)[::-1]
            rounds.append({variant: repeat(variant, first[variant] + turn) for variant in order})
            report(f"turn {turn + 1} of {flags.repeats}")
    finally:
        for process in processes.values():
            process.close()
    return rounds, left


def fastest_peers(rounds):
    """Return {(workload, peer): mode} of the peers' fastest modes."""
    fastest = {}
    for known, engine, precision, mode in rounds[0]:
        if engine in PEERS:
            seconds = statistics.median(turn[known, engine, precision, mode]["seconds"] for turn in rounds)
            fastest[known, engine] = min(fastest.get((known, engine), (seconds, mode)), (seconds, mode))
    return {key: mode for key, (_, mode) in fastest.items()}


def record(size, variant, workloads, rounds, fastest, flags):
    """Return the record of one variant."""
    known, engine, precision, mode = variant
    answers = [turn[variant] for turn in rounds]

    def median(value):
        return statistics.median(map(value, rounds))

    def speed(of, name):
        return lambda turn: turn[of][name] / turn[of]["seconds"]

    def ratio(of, name):
        if of not in rounds[0] or variant not in rounds[0]:
            return None
        return median(lambda turn: speed(variant, name)(turn) / speed(of, name)(turn))

    row = {
        "benchmark": "train_step", "engine": engine, "version": peers.VERSIONS.get(engine), "mode": mode or None,
        "precision": precision, "size": size, "workload": known, "device": flags.device,
        "batch_tokens": None if engine == PRODUCT else workloads[known].job["corpus"]["batch_tokens"],
        "flops_per_second": median(speed(variant, "flops")),
        "peak_memory_mb": max(answer["peak_memory_mb"] or 0 for answer in answers),
        "turns_seconds": [answer["seconds"] for answer in answers],
        "repeats": len(rounds), "threads": flags.threads,
    }  # fmt: skip
    if engine == PRODUCT:
        return row
    peers_float32 = {peer: (known, peer, "float32", fastest.get((known, peer))) for peer in PEERS}
    return row | {
        "target_tokens_per_second": median(speed(variant, "tokens")),
        "milliseconds_per_step": 1e3 * median(lambda turn: turn[variant]["seconds"]) / workloads[known].job["updates"],
        "seconds_to_first_step": answers[0]["seconds_to_first_step"], "first_loss": answers[0]["first_loss"],
        "ratios": {peer: ratio(of, "tokens") for peer, of in peers_float32.items()},
        "over_product": ratio(("fixed", PRODUCT, "float32", ""), "flops"),
        "over_own_product": ratio(("fixed", PRODUCT, precision, ""), "flops"),
        "over_fixed": ratio(("fixed", engine, precision, mode), "tokens") if known != "fixed" else None,
    }  # fmt: skip


def check(flags, folder):
    """Has all engines make updates without dropout and smoothing, on padded batches, and compares four losses.

    Raises:
        SystemExit: An engine computes something else.
    """
    work = workload("wmt", CHECK, flags, folder / "check", dropout=0.0, label_smoothing=0.0, warmup_steps=100)
    job = {**work.job, "warm_updates": 0, "updates": 1}
    losses = {}
    for engine in flags.engines:
        for mode in flags.modes[engine]["float32"]:
            place = folder / f"{engine}-{mode}"
            process = peers.Process("train", engine, "float32", mode, job, flags.environments, place)
            try:
                answers = [process.repeat() for _ in range(3)]
            finally:
                process.close()
            losses[engine, mode] = [answers[0]["first_loss"], *(answer["loss"] for answer in answers)]
            print(f"{engine} {mode}: " + " ".join(f"{loss:.5f}" for loss in losses[engine, mode]), flush=True)
    ours = losses[OURS, flags.modes[OURS]["float32"][0]]
    if not all(abs(a - b) <= TOLERANCE for found in losses.values() for a, b in zip(found, ours, strict=True)):
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
