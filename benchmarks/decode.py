"""Speed of translating with beam search: this project beside CTranslate2 and OpenNMT-tf, with the same weights.

    python benchmarks/decode.py --json=docs/results/decode.jsonl
    python benchmarks/decode.py --engines=keras_transformer,ctranslate2 --precisions=float32 --sizes=tiny
    python benchmarks/decode.py --workloads=natural --run=runs/multi30k_ende-tiny

`forced`: random weights, 64 sentences of 25 source tokens in one batch, and 26 output tokens each: EOS is impossible
before the last, and here it is the last. `natural`: a split of a trained run's problem with its weights, 64 sentences
of about the same length in a batch, no more tokens than the run allows (in the other engines: than it allows the
batch's longest), and the score of each engine's outputs; its output tokens are those of each sentence's best
hypothesis, without EOS. All is done on the CPU.

Each engine has a process of its own, with `--threads` threads. It loads its model and translates everything once before
anything is timed; then all take turns, `--repeats` times, so that other load on the machine falls on all alike. What
counts is the median, and of two engines the median of the rounds' ratios. Memory is the most that was resident in the
process. This project is given texts, the others ids, and giving a text's pieces their ids takes next to no time.

The engines' searches differ. Length penalties, |y| counting EOS: here ((5 + |y|) / 6)^α; in OpenNMT-tf the same, but
((6 + |y|) / 6)^α as soon as a hypothesis has ended; in CTranslate2 |y|^α, and there is no other. A sentence's search
ends here when no open hypothesis can still become the best; in CTranslate2 when as many have ended as there are beams,
with α = 0 when the first beam has; in OpenNMT-tf when every beam has. A forced hypothesis ends with EOS here, which
takes one step more. CTranslate2 and OpenNMT-tf may output PAD and BOS.
"""

import dataclasses
import itertools
import operator
import statistics
import tempfile
from pathlib import Path

import numpy as np
import peers
from command_line import Parser, add_row, check_flags, names, number, print_table
from engines.layout import write_model

from keras_transformer.backend.loading import chosen_backend, load_keras
from keras_transformer.cli.arguments import run_command
from keras_transformer.cli.output import report
from keras_transformer.data.tokenizers.base import SPECIAL
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.utils.errors import UserError

ENGINES = {
    "keras_transformer": ("float32", "bfloat16"),
    "ctranslate2": ("float32", "int8"),
    "opennmt_tf": ("float32",),
}
"""Engines, and the precisions that they are measured in."""
MODES = {"tensorflow": ("graph", "xla"), "jax": ("jax",)}
"""How this project runs on a backend; XLA has to compile a few shapes of batches first, seconds each."""
OURS, REFERENCES = "keras_transformer", ("ctranslate2", "opennmt_tf")
SIZES = {"tiny": ("tiny", 10_000), "base": ("base", 37_000)}
"""Preset and vocabulary of a size."""
WORKLOADS = ("forced", "natural")
BEAM_SIZE, SENTENCES, LENGTH = 4, 64, 25
PRECISIONS = tuple(dict.fromkeys(precision for known in ENGINES.values() for precision in known))


def main(arguments):
    flags = read_flags(arguments)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        rows = []
        for name, size in flags.measured:
            (folder / f"{name}-{size}").mkdir()
            workload = (forced if name == "forced" else natural)(flags, size, folder / f"{name}-{size}")
            rows += measure(workload, flags, folder / f"{name}-{size}")
    print_table("decoding", rows)


def read_flags(arguments):
    """Return the flags, with `variants` [(engine, precision, mode)] and `measured` [(workload, size)] added.

    Raises:
        UserError: A flag or a name is wrong, or nothing is left to measure.
    """
    parser = Parser(__doc__)
    modes = MODES[chosen_backend()]
    for name, known in (("engines", ENGINES), ("sizes", SIZES), ("precisions", PRECISIONS), ("modes", modes)):
        parser.add_argument(f"--{name}", default=",".join(known), help="comma-separated (default %(default)s)")
    parser.add_argument("--workloads", help="comma-separated (default forced, and with --run natural)")
    parser.add_argument("--run", help="the run directory whose model `natural` translates with")
    parser.add_argument("--checkpoint", help="best, last, averaged or a step (default best, or last)")
    parser.add_argument("--split", default="test", help="split that `natural` translates (default %(default)s)")
    parser.add_argument("--sentences", type=number, help="how many of its first sentences (default all)")
    parser.add_argument("--repeats", type=number, default=5, help="timed repeats (default %(default)s)")
    parser.add_machine()
    parser.add_json()
    flags = parser.parse_args(arguments)
    engines = names("engine", flags.engines, ENGINES)
    precisions = names("precision", flags.precisions, PRECISIONS)
    workloads = names("workload", flags.workloads or ("forced,natural" if flags.run else "forced"), WORKLOADS)
    sizes = names("size", flags.sizes, SIZES)
    modes = names("mode", flags.modes, modes)
    flags.variants = [
        (engine, known, mode)
        for engine in engines
        for known in ENGINES[engine]
        if known in precisions
        for mode in (modes if engine == OURS else ("default",))
    ]
    if not flags.variants:
        raise UserError(f"--engines={flags.engines} --precisions={flags.precisions}: no engine is measured in these")
    if "natural" in workloads and not flags.run:
        raise UserError("the workload natural needs a trained run: --run=DIR")
    check_flags(flags)
    flags.measured = [("forced", size) for size in sizes if "forced" in workloads]
    flags.measured += [("natural", None)] if "natural" in workloads else []
    return flags


@dataclasses.dataclass(frozen=True)
class Workload:
    """What all engines translate.

    Attributes:
        name: One of `WORKLOADS`.
        size: One of `SIZES`, or a run's preset.
        model: File of the model, see `engines.layout`.
        tokenizer: The `Tokenizer`.
        folder: Folder of its file.
        texts: Source sentences.
        alpha: Exponent of the length penalty.
        extra_length: Most tokens beyond the source's.
        min_length: Tokens before EOS; where it is not 0, EOS is the next here, and others end with one token more.
        score: Function of the outputs' texts that gives their BLEU, or None.
        beam_size: Beams a sentence.
    """

    name: str
    size: str
    model: Path
    tokenizer: object
    folder: Path
    texts: list
    alpha: float
    extra_length: int
    min_length: int = 0
    score: object = None
    beam_size: int = BEAM_SIZE

    def tokens(self, outputs):
        """Return the number of output tokens that count."""
        return len(outputs) * (self.min_length + 1) if self.min_length else sum(map(len, outputs))

    def job(self, threads):
        """Return the job of an engine, for JSON."""
        return {
            "model": str(self.model), "tokenizer": str(self.folder), "texts": self.texts,
            "sources": self.tokenizer.encode(self.texts), "beam_size": self.beam_size, "alpha": self.alpha,
            "extra_length": self.extra_length, "min_length": self.min_length, "threads": threads,
            "forced_length": self.min_length and self.min_length + 1,
        }  # fmt: skip


def forced(flags, size, folder):
    """Return the workload of random weights and equal lengths."""
    load_keras()
    import keras_transformer as kt

    preset, vocab_size = SIZES[size]
    hparams = kt.hparams(preset)
    write_model(folder / "model.npz", kt.Transformer.from_hparams(hparams, vocab_size=vocab_size))
    tokenizer = SymbolTokenizer([f"w{i}" for i in range(len(SPECIAL), vocab_size)])
    tokenizer.save(folder)
    ids = np.random.default_rng(0).integers(len(SPECIAL), vocab_size, (SENTENCES, LENGTH))
    return Workload(
        "forced", size, folder / "model.npz", tokenizer, folder, tokenizer.decode(ids.tolist()), hparams.alpha,
        extra_length=0, min_length=LENGTH,
    )  # fmt: skip


def natural(flags, size, folder):
    """Return the workload of a trained run."""
    load_keras()
    from keras_transformer.runs.run import Run

    run = Run.open(flags.run)
    examples = itertools.islice(run.problem.examples(flags.split), flags.sentences)
    sources, references = map(list, zip(*examples))
    write_model(folder / "model.npz", run.load_model(flags.checkpoint))
    return Workload(
        "natural", run.config["preset"] or "custom", folder / "model.npz", run.tokenizer, run.path.resolve(), sources,
        run.hparams.alpha, run.hparams.extra_length,
        score=lambda outputs: run.problem.score(outputs, references)[-1].value,
    )  # fmt: skip


def measure(workload, flags, folder):
    """Return the records of one workload, and append them to `--json`."""
    processes = start(workload, flags, flags.variants, folder)
    rounds = []
    try:
        for number in range(flags.repeats + 1):
            # There and back: whoever is first after another one's turn is not always the same.
            turns = processes if number % 2 else processes[::-1]
            answers = {process: process.repeat() for process in turns}
            if number:
                rounds.append(answers)
            report(f"{workload.name} {workload.size}: " + (f"{number} of {flags.repeats}" if number else "warm"))
    finally:
        for process in processes:
            process.close()
    return [add_row(record(process, workload, flags, rounds), flags.json) for process in processes]


def start(workload, flags, variants, folder):
    """Return a `Process` for each (engine, precision, mode), loaded one after the other."""
    processes = []
    try:
        for engine, precision, mode in variants:
            report(f"{workload.name} {workload.size}: loading {engine} {precision} {mode}")
            place, job = folder / f"{engine}-{precision}-{mode}", workload.job(flags.threads)
            processes.append(peers.Process("decode", engine, precision, mode, job, flags.environments, place))
    except BaseException:
        for process in processes:
            process.close()
        raise
    return processes


def record(process, workload, flags, rounds):
    """Return the record of one engine; `rounds` are {process: answer}."""
    answers = [turn[process] for turn in rounds]
    outputs = answers[-1]["outputs"]
    forced_length = workload.min_length + (process.engine != OURS)
    if workload.min_length and {len(ids) for ids in outputs} != {forced_length}:
        raise RuntimeError(f"{process.engine} gave outputs of other lengths than {forced_length}")

    def speed(answer):
        return workload.tokens(answer["outputs"]) / answer["seconds"]

    in_float32 = {other.engine: other for other in reversed(rounds[0]) if other.precision == "float32"}
    ratios = dict.fromkeys(REFERENCES)
    for name in REFERENCES:
        if reference := in_float32.get(name):
            ratios[name] = statistics.median(speed(turn[process]) / speed(turn[reference]) for turn in rounds)
    same = None
    if OURS in in_float32 and not workload.min_length:
        same = sum(map(operator.eq, outputs, rounds[-1][in_float32[OURS]]["outputs"])) / len(outputs)
    return {
        "benchmark": "decode", "engine": process.engine, "version": peers.VERSIONS.get(process.engine),
        "mode": process.mode, "precision": process.precision, "size": workload.size, "workload": workload.name,
        "output_tokens_per_second": statistics.median(map(speed, answers)),
        "peak_memory_mb": max(answer["peak_memory_mb"] for answer in answers),
        "bleu": workload.score and workload.score(workload.tokenizer.decode(outputs)),
        "same_as_ours": same, "ratios": ratios, "repeats": flags.repeats, "threads": flags.threads,
        "sentences": len(outputs), "output_tokens": workload.tokens(outputs), "beam_size": workload.beam_size,
        "alpha": workload.alpha,
    }  # fmt: skip


if __name__ == "__main__":
    run_command(main)
