"""Compare the training speed of this project, PyTorch, OpenNMT-tf, keras-hub and large matrix products.

    python benchmarks/train_step.py --raw_dir=CORPORA --json=docs/results/train_step.jsonl
    python benchmarks/train_step.py --engines=keras_transformer --sizes=tiny
    python benchmarks/train_step.py --check          # compare the losses of the engines, not their speed
    KERAS_BACKEND=jax python benchmarks/train_step.py --engines=keras_transformer --device=gpu --sizes=base,big \
        --precisions=bfloat16 --workloads=fixed,wmt --batch_tokens=25000

Workloads:

- `fixed`: random tokens in sequences of equal length, without padding. Each batch has `--batch_tokens` source tokens
  and as many target tokens.
- `multi30k`: Multi30k, in batches of the preset's `batch_tokens`. All rounds together train on a quarter of an epoch.
  This project reads the prepared token store, and the other engines read arrays in memory.
- `wmt`: random tokens in sequences with lengths as in WMT.

All engines make the same updates from the same weights, with the same batches and learning rates. The model has
post-norm, dropout only after the embedding and the sublayers, and label smoothing of 0.1. OpenNMT-tf distributes the
smoothing probability over all tokens except the label, and the other engines distribute it over all tokens. TensorFlow
uses its oneDNN operations in all engines.

Each engine runs in a separate process with `--threads` threads. In each of `--repeats` rounds, the engines run one
after the other, so that other programs affect all engines equally. If an engine has two modes, with and without
compilation by XLA or `torch.compile`, the slower mode stops after its first round, unless another workload uses that
mode. The engines other than this project run in float32. With `--peers_bfloat16`, these engines run a second time, in
bfloat16.

The benchmark reports these measurements:

- Speed: the median over all rounds of the target tokens per second, without padding.
- Ratio to another engine: the speed divided by the speed of that engine in float32, in its fastest mode. The benchmark
  reports the median over all rounds.
- Operations: the floating-point operations of matrix products, including padding within a batch. A multiply-add is two
  operations, and a backward pass has twice as many as a forward pass.
- Memory: the peak resident memory of the process, in MB of 10⁶ bytes.
- Time to the first step: measured from the start of the process, while no other engine computes.
"""

import collections
import dataclasses
import math
import statistics
import sys
import tempfile
from pathlib import Path

import peers
from command_line import Parser, add_row, print_table

from keras_transformer.backend.loading import chosen_backend, load_keras
from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.cli.output import report
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.machine import cpu_has_bfloat16

sys.path.insert(0, str(Path(__file__).parent / "engines"))

OURS, PRODUCT = "keras_transformer", "matmul"
MODES = {
    "opennmt_tf": {"float32": ("graph", "xla")},
    "pytorch": {"float32": ("eager", "compile"), "bfloat16": ("eager", "compile")},
    "keras_hub": {"float32": ("graph", "xla"), "bfloat16": ("graph",)},
}
"""{engine: {precision: modes}}. Workloads other than `fixed` use only the first mode, which accepts any shape."""
OUR_MODES = {
    "tensorflow": {"float32": ("graph", "xla"), "bfloat16": ("graph",)},
    "jax": {"float32": ("jax",), "bfloat16": ("jax",)},
}
PEERS = tuple(MODES)
PRECISIONS = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Size:
    """Model size, with the sequence length, batch size and number of updates per round of the workload `fixed`."""

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
WORKLOADS = {"fixed": tuple(SIZES), "multi30k": ("tiny",), "wmt": tuple(SIZES)}
"""{workload: model sizes}."""
BATCHES = 60  # number of batches of random tokens per epoch
WARM_UPDATES = 2
CHECK = Size("tiny", 60, 0, 500, 1)
TOLERANCE = 1e-3  # maximum difference between the losses of two engines, in nats


def main(arguments):
    flags = read_flags(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if flags.check:
            return check(flags, Path(folder))
        rows = []
        for size in flags.sizes:
            for found in measure(size, flags, Path(folder) / size):
                rows += [add_row(row, flags.json) for row in found]
    print_table("training", rows)


def read_flags(arguments):
    """Parse the command line and return the flags. Their attribute `modes` contains the modes of all engines.

    Raises:
        UserError: A flag is invalid, or the benchmark does not support the combination of flags.
    """
    engines = (OURS, *PEERS)
    parser = Parser(__doc__)
    parser.add_names("--engines", engines, ",".join(engines))
    parser.add_names("--sizes", SIZES, "tiny,base")
    parser.add_names("--precisions", PRECISIONS, help="default float32, and bfloat16 if the device supports it")
    parser.add_names("--workloads", WORKLOADS, help="default fixed, and multi30k with --raw_dir")
    parser.add_argument("--peers_bfloat16", action="store_true", help="also measure other engines in bfloat16")
    parser.add_corpus()
    parser.add_argument(
        "--batch_tokens", type=positive_int, help="tokens per side of a batch in the workloads fixed and wmt"
    )
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_engines()
    parser.set_defaults(repeats=3)
    parser.add_argument("--check", action="store_true", help="compare losses, and exit with status 1 if they differ")
    flags = parser.parse_args(arguments)
    flags.modes = {OURS: OUR_MODES[chosen_backend()], **MODES}
    flags.workloads = flags.workloads or ["fixed", "multi30k"][: 2 if flags.raw_dir else 1]
    has_bfloat16 = flags.device == "gpu" or cpu_has_bfloat16()
    flags.precisions = flags.precisions or list(PRECISIONS[: 2 if has_bfloat16 else 1])
    flags.precisions.sort(key=PRECISIONS.index)
    alone = flags.engines == [OURS]
    for wrong, message in (
        (not alone and "float32" not in flags.precisions,
         f"other engines require float32. Add it to --precisions, or use --engines={OURS}."),
        (flags.peers_bfloat16 and "bfloat16" not in flags.precisions,
         "--peers_bfloat16 requires bfloat16. Add it to --precisions."),
        (flags.check and OURS not in flags.engines,
         f"--check compares other engines with this project. Add {OURS} to --engines."),
        ("multi30k" in flags.workloads and not flags.raw_dir,
         "the workload multi30k requires the corpus. Add --raw_dir=FOLDER."),
        (flags.device == "gpu" and not (alone and chosen_backend() == "jax"),
         f"--device=gpu requires this project on JAX. Use KERAS_BACKEND=jax and --engines={OURS}."),
    ):  # fmt: skip
        if wrong:
            raise UserError(message)
    return flags


@dataclasses.dataclass(frozen=True)
class Workload:
    """Training batches and a model, stored in files that the engines read.

    Attributes:
        name: One of `WORKLOADS`.
        job: Job for the engines, a dictionary (see `peers.Process`).
        tokens: Number of target tokens of each batch, without padding.
        flops: Number of floating-point operations of the update on each batch.
    """

    name: str
    job: dict
    tokens: list
    flops: list

    def job_of(self, mode):
        """Return the job for an engine that runs in `mode`. On JAX, the warm-up compiles all batch shapes."""
        every_shape = mode == "jax" and self.name != "fixed"
        return {**self.job, "warm_updates": len(self.tokens)} if every_shape else self.job

    def work(self, turn, mode):
        """Return the numbers of target tokens and operations in round `turn` (from 0) as {"tokens": …, "flops": …}."""
        before = 1 + self.job_of(mode)["warm_updates"]
        first = before + turn * (1 + self.job["updates"]) + 1
        numbers = [i % len(self.tokens) for i in range(first, first + self.job["updates"])]
        return {"tokens": sum(self.tokens[i] for i in numbers), "flops": sum(self.flops[i] for i in numbers)}


def make_workload(name, size, flags, folder, **hparams):
    """Write the files of a workload and return the `Workload`."""
    load_keras()
    import numpy as np
    import protocol
    from workload import training_batches

    import keras_transformer as kt

    folder.mkdir(parents=True)
    vocab_size, hparams = size.vocab_size, kt.hparams(size.preset, **hparams)
    if name == "multi30k":
        corpus = {
            "problem": "multi30k_ende", "data_dir": flags.data_dir, "raw_dir": flags.raw_dir,
            "hparams": size.preset, "batch_tokens": hparams.batch_tokens,
        }  # fmt: skip
        problem = kt.problem("multi30k_ende", data_dir=flags.data_dir, raw_dir=flags.raw_dir).prepare()
        vocab_size = problem.tokenizer.vocab_size
    else:
        lengths, batch_tokens = "wmt" if name == "wmt" else size.length, flags.batch_tokens or size.batch_tokens
        corpus = {"lengths": lengths, "vocab_size": vocab_size, "batch_tokens": batch_tokens, "batches": BATCHES}
    batches = training_batches(corpus).replace(few_shapes=False)
    model = kt.Transformer.from_hparams(hparams, vocab_size=vocab_size)
    protocol.write_model(folder / "model.npz", model)
    epoch = [batches[i] for i in range(batches.batches_per_epoch)]
    protocol.write_batches(folder / "batches.npz", [(*inputs, labels) for inputs, labels, _ in epoch])
    updates = math.ceil(len(epoch) / 4 / flags.repeats) if name == "multi30k" else size.updates
    job = {
        "model": str(folder / "model.npz"), "batches": str(folder / "batches.npz"), "corpus": corpus,
        "updates": updates, "warm_updates": WARM_UPDATES, "threads": flags.threads, "device": flags.device,
    }  # fmt: skip
    return Workload(
        name, job, [int(np.count_nonzero(labels)) for _, labels, _ in epoch],
        [model.update_flops(*source.shape, labels.shape[1]) for (source, _), labels, _ in epoch],
    )  # fmt: skip


Variant = collections.namedtuple("Variant", "workload engine precision mode")


def measure(name, flags, folder):
    """Benchmark one model size.

    Yields:
        A list of rows for this project, and for the other engines in float32. With `--peers_bfloat16`, also a second
        list of rows, for the other engines in bfloat16.
    """
    workloads = {
        known: make_workload(known, SIZES[name], flags, folder / known)
        for known in flags.workloads
        if name in WORKLOADS[known]
    }
    products = [Variant("fixed", PRODUCT, precision, "") for precision in dict.fromkeys(("float32", *flags.precisions))]

    def variants(engines, precisions):
        return [
            Variant(known, engine, precision, mode)
            for known in workloads
            for precision in precisions
            for engine in engines
            for mode in flags.modes[engine].get(precision, ())[: None if known == "fixed" else 1]
        ]

    def rows(chosen, rounds, slower):
        return [
            row_of(name, variant, workloads, [slower] if variant in slower else rounds, fastest, flags)
            for variant in chosen
        ]

    others = [engine for engine in flags.engines if engine != OURS]
    chosen = variants([OURS] if OURS in flags.engines else [], flags.precisions) + variants(others, ["float32"])
    rounds, slower = alternate(products + chosen, workloads, flags, folder / "together")
    fastest = fastest_peers(rounds)
    yield rows(chosen + products, rounds, slower)
    if flags.peers_bfloat16 and (chosen := variants(others, ["bfloat16"])):
        references = [Variant(known, engine, "float32", mode) for (known, engine), mode in fastest.items()]
        yield rows(chosen, *alternate(products + references + chosen, workloads, flags, folder / "bfloat16"))


def alternate(variants, workloads, flags, folder):
    """Run all variants in rounds, one after the other in each round.

    If an engine has several modes, drop the slowest one after the first round to save time and memory. With several
    workloads, always keep the engine's first mode, so that its speeds on all workloads can be compared.

    Returns:
        (rounds, dropped). `rounds` is a list with a dictionary {variant: {"seconds", "tokens", "flops", …}} for each
        round. `dropped` is a dictionary of the same form for the variants that were dropped after the first round.
    """
    processes, rounds, slower, first_turn = {}, [], {}, collections.Counter()

    def repeat(variant, turn):
        answer = processes[variant].repeat()
        if variant.engine != PRODUCT:
            answer |= workloads[variant.workload].work(turn, variant.mode)
        return answer

    try:
        for number, variant in enumerate(variants):
            report(f"loading {' '.join(filter(None, variant))}")
            task, job = "matmul", {"threads": flags.threads, "device": flags.device}
            if variant.engine != PRODUCT:
                task, job = "train", workloads[variant.workload].job_of(variant.mode)
            processes[variant] = peers.Process(task, *variant[1:], job, flags.environments, folder / str(number))
            rivals = [one for one in processes if one[:3] == variant[:3] and one.engine != PRODUCT]
            if len(rivals) > 1:
                found = {one: repeat(one, first_turn[one]) for one in rivals}
                first_turn.update(rivals)
                slowest = max(found, key=lambda one: found[one]["seconds"])
                if len(workloads) == 1 or slowest.mode != flags.modes[variant.engine][variant.precision][0]:
                    slower[slowest] = found[slowest]
                    processes.pop(slowest).close()
        for turn in range(flags.repeats):
            order = peers.alternating(processes, turn)
            rounds.append({variant: repeat(variant, first_turn[variant] + turn) for variant in order})
            report(f"round {turn + 1} of {flags.repeats}")
    finally:
        for process in processes.values():
            process.close()
    return rounds, slower


def fastest_peers(rounds):
    """Return the fastest mode of each engine in `PEERS` as {(workload, engine): mode}."""
    fastest = {}
    for variant in rounds[0]:
        if variant.engine in PEERS:
            key, seconds = variant[:2], statistics.median(turn[variant]["seconds"] for turn in rounds)
            fastest[key] = min(fastest.get(key, (seconds, variant.mode)), (seconds, variant.mode))
    return {key: mode for key, (_, mode) in fastest.items()}


def row_of(size, variant, workloads, rounds, fastest, flags):
    """Return the result row of one variant."""
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
    return row | {
        "target_tokens_per_second": median(speed(variant, "tokens")),
        "milliseconds_per_step": 1e3 * median(lambda turn: turn[variant]["seconds"]) / workloads[known].job["updates"],
        "seconds_to_first_step": answers[0]["seconds_to_first_step"], "first_loss": answers[0]["first_loss"],
        "ratios": {
            peer: ratio(Variant(known, peer, "float32", fastest.get((known, peer))), "tokens") for peer in PEERS
        },
        "over_product": ratio(Variant("fixed", PRODUCT, "float32", ""), "flops"),
        "over_own_product": ratio(Variant("fixed", PRODUCT, precision, ""), "flops"),
        "over_fixed": ratio(Variant("fixed", engine, precision, mode), "tokens") if known != "fixed" else None,
    }  # fmt: skip


def check(flags, folder):
    """Compare the losses of all engines in four updates on padded batches, without dropout or label smoothing.

    Raises:
        SystemExit: The losses differ.
    """
    work = make_workload("wmt", CHECK, flags, folder / "check", dropout=0.0, label_smoothing=0.0, warmup_steps=100)
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
