"""Compare the speed of beam search on the CPU in this project, CTranslate2 and OpenNMT-tf, with the same weights.

    python benchmarks/decode.py --json=docs/results/decode.jsonl
    python benchmarks/decode.py --engines=keras_transformer,ctranslate2 --precisions=float32 --sizes=tiny
    python benchmarks/decode.py --workloads=natural --run=runs/multi30k_ende-tiny

Workloads:

- `forced`: a model with random weights translates one batch of 64 sentences. Each sentence has 25 source tokens, and
  each output 26 tokens (see below).
- `natural`: a trained run translates a split of its problem in batches of 64 sentences of similar length. The limit for
  the length of an output is the source length plus `extra_length`. The other engines apply the limit of the longest
  source to the whole batch. Only the tokens of the best hypotheses count as output tokens, without EOS.

Each engine runs in a separate process with `--threads` threads. The process loads the model and translates all
sentences once as a warm-up. In each of `--repeats` rounds, the engines then run one after the other, so that the load
from other programs slows down all engines alike. The benchmark reports the median speed of each engine and the median
ratio between two engines over all rounds. Memory is the peak resident memory of the process. This project starts from
text and the other engines from token ids, but tokenization takes hardly any time.

The searches differ:

- Length penalty, with |y| counting EOS: ((5 + |y|) / 6)^α in this project, |y|^α in CTranslate2. OpenNMT-tf uses
  ((5 + |y|) / 6)^α for open and ((6 + |y|) / 6)^α for finished hypotheses.
- End of the search: this project stops when no open hypothesis can become the best. OpenNMT-tf stops when every beam
  has finished. CTranslate2 stops when it has as many finished hypotheses as beams. With α = 0, it stops when the
  best beam has finished.
- Outputs of `forced`: this project outputs 25 tokens and EOS. The other engines output 26 tokens without EOS.
- CTranslate2 and OpenNMT-tf may output PAD and BOS. This project never outputs them.
"""

import dataclasses
import itertools
import operator
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import peers
from command_line import Parser, add_row, print_table

from keras_transformer.backend.loading import chosen_backend, load_keras
from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.cli.output import report
from keras_transformer.data.tokenizers.base import SPECIAL
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.utils.errors import UserError

sys.path.insert(0, str(Path(__file__).parent / "engines"))
import protocol  # noqa: E402

ENGINES = {
    "keras_transformer": ("float32", "bfloat16"),
    "ctranslate2": ("float32", "int8"),
    "opennmt_tf": ("float32",),
}
"""{engine: supported precisions}."""
MODES = {"tensorflow": ("graph", "xla"), "jax": ("jax",)}
"""{backend: compilation modes of this project}."""
OURS, REFERENCES = "keras_transformer", ("ctranslate2", "opennmt_tf")
SIZES = {"tiny": ("tiny", 10_000), "base": ("base", 37_000)}
"""{name: (preset, vocabulary size)}."""
BEAM_SIZE, SENTENCES, LENGTH = 4, 64, 25
PRECISIONS = tuple(dict.fromkeys(itertools.chain(*ENGINES.values())))


def main(arguments):
    flags = read_flags(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in flags.workloads:
            for size in flags.sizes if name == "forced" else [None]:
                place = Path(folder) / f"{name}-{size}"
                place.mkdir()
                workload = forced(size, place) if name == "forced" else natural(flags, place)
                rows += measure(workload, flags, place)
    print_table("decoding", rows)


def read_flags(arguments):
    """Parse the command line. Return the flags, with an attribute `variants`: a list of (engine, precision, mode).

    Raises:
        UserError: A flag is wrong, or the flags exclude all engines.
    """
    parser = Parser(__doc__)
    parser.add_names("--engines", ENGINES, ",".join(ENGINES))
    parser.add_names("--sizes", SIZES, ",".join(SIZES))
    parser.add_names("--precisions", PRECISIONS, ",".join(PRECISIONS))
    modes = MODES[chosen_backend()]
    parser.add_names("--modes", modes, ",".join(modes))
    parser.add_names("--workloads", ("forced", "natural"), "forced")
    parser.add_run(required=False)
    parser.add_argument("--split", default="test", help="split for the workload natural (default %(default)s)")
    parser.add_argument(
        "--sentences", type=positive_int, help="number of sentences for the workload natural (default all)"
    )
    parser.add_engines()
    flags = parser.parse_args(arguments)
    flags.variants = [
        (engine, precision, mode)
        for engine in flags.engines
        for precision in ENGINES[engine]
        if precision in flags.precisions
        for mode in (flags.modes if engine == OURS else ("default",))
    ]
    if not flags.variants:
        raise UserError("the --engines support none of the --precisions. Change one of the flags.")
    if "natural" in flags.workloads and not flags.run:
        raise UserError("the workload natural requires a trained run. Add --run=DIR.")
    return flags


@dataclasses.dataclass(frozen=True)
class Workload:
    """Sentences to translate, and the model that all engines use.

    Attributes:
        name: "forced" or "natural".
        size: One of `SIZES`, or the preset of a run.
        model: File of the model, see `protocol.write_model`.
        tokenizer: The `Tokenizer`.
        folder: Folder with the tokenizer's file.
        texts: Source sentences.
        alpha: Exponent of the length penalty.
        extra_length: Maximum number of output tokens beyond the source length.
        min_length: Number of tokens before EOS in each output of `forced`, or 0 for `natural`. Instead of EOS, the
            engines of other projects output one more token.
        score: Function from output texts to BLEU, or None.
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

    def tokens(self, outputs):
        """Return the number of output tokens from which the speed is computed."""
        return len(outputs) * (self.min_length + 1) if self.min_length else sum(map(len, outputs))

    def job(self, threads):
        """Return the job of an engine as an object that can be converted to JSON."""
        return {
            "model": str(self.model), "tokenizer": str(self.folder), "texts": self.texts,
            "sources": self.tokenizer.encode(self.texts), "beam_size": BEAM_SIZE, "alpha": self.alpha,
            "extra_length": self.extra_length, "min_length": self.min_length, "threads": threads,
            "forced_length": self.min_length and self.min_length + 1,
        }  # fmt: skip


def forced(size, folder):
    """Return the workload `forced`, with random weights and sentences of equal length."""
    load_keras()
    import keras_transformer as kt

    preset, vocab_size = SIZES[size]
    hparams = kt.hparams(preset)
    protocol.write_model(folder / "model.npz", kt.Transformer.from_hparams(hparams, vocab_size=vocab_size))
    tokenizer = SymbolTokenizer([f"w{i}" for i in range(len(SPECIAL), vocab_size)])
    tokenizer.save(folder)
    ids = np.random.default_rng(0).integers(len(SPECIAL), vocab_size, (SENTENCES, LENGTH))
    return Workload(
        "forced", size, folder / "model.npz", tokenizer, folder, tokenizer.decode(ids.tolist()), hparams.alpha,
        extra_length=0, min_length=LENGTH,
    )  # fmt: skip


def natural(flags, folder):
    """Return the workload `natural`, with a trained run."""
    load_keras()
    from keras_transformer.runs.run import Run

    run = Run.open(flags.run)
    examples = itertools.islice(run.problem.examples(flags.split), flags.sentences)
    sources, references = map(list, zip(*examples))
    protocol.write_model(folder / "model.npz", run.load_model(flags.checkpoint))
    return Workload(
        "natural", run.config["preset"] or "custom", folder / "model.npz", run.tokenizer, run.path.resolve(), sources,
        run.hparams.alpha, run.hparams.extra_length,
        score=lambda outputs: run.problem.score(outputs, references)[-1].value,
    )  # fmt: skip


def measure(workload, flags, folder):
    """Measure a workload, append the result rows to the file `--json`, and return them."""
    processes, rounds = [], []
    try:
        for variant in flags.variants:
            report(f"{workload.name} {workload.size}: loading {' '.join(variant)}")
            place = folder / "-".join(variant)
            processes.append(peers.Process("decode", *variant, workload.job(flags.threads), flags.environments, place))
        for turn in range(flags.repeats + 1):
            answers = {process: process.repeat() for process in peers.alternating(processes, turn)}
            if turn:
                rounds.append(answers)
            report(f"{workload.name} {workload.size}: " + (f"round {turn} of {flags.repeats}" if turn else "warm-up"))
    finally:
        for process in processes:
            process.close()
    return [add_row(row_of(process, workload, flags, rounds), flags.json) for process in processes]


def row_of(process, workload, flags, rounds):
    """Return the result row of one engine. `rounds` is a list with a dictionary {process: answer} for each round."""
    answers = [turn[process] for turn in rounds]
    outputs = answers[-1]["outputs"]
    forced_length = workload.min_length + (process.engine != OURS)
    if workload.min_length and {len(ids) for ids in outputs} != {forced_length}:
        raise RuntimeError(f"{process.engine} must output {forced_length} tokens per sentence")

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
        "sentences": len(outputs), "output_tokens": workload.tokens(outputs), "beam_size": BEAM_SIZE,
        "alpha": workload.alpha,
    }  # fmt: skip


if __name__ == "__main__":
    run_command(main)
