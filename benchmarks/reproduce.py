"""Run the parts of an experiment that have no results yet.

    python benchmarks/reproduce.py multi30k --raw_dir=FOLDER
    python benchmarks/reproduce.py table3 --list

An experiment is a list of runs. The program trains each run and evaluates some of its checkpoints. By default, it
evaluates the best checkpoint and the average of the last checkpoints, on the validation and the test split. Each
evaluation appends a row to docs/results/EXPERIMENT.jsonl. The program skips evaluations that already have a row, even
if another backend or precision produced the row. You may interrupt the program at any time. The same command resumes
from the last checkpoint. `--list` shows which runs are done.

Several processes may work on one experiment, for example one per core (`taskset -c 1 python …`). A process skips runs
on which another process is working. The environment variable KERAS_BACKEND selects the backend, and `--precision`
selects the precision of training.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path

from command_line import Parser

from keras_transformer.cli.arguments import run_command
from keras_transformer.cli.output import report
from keras_transformer.config.hparams import HParams, changed_fields, load_hparams
from keras_transformer.data.corpus import read_lines
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import atomic_open, lock_file

SPLITS = ("validation", "test")
DEFAULTS = {field.name: field.default for field in dataclasses.fields(HParams)}


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Evaluation of a checkpoint on a split. `decoding` contains the search options that differ from the hparams."""

    checkpoint: str
    split: str
    decoding: dict = dataclasses.field(default_factory=dict)

    def matches(self, row):
        """Return whether a result row of the planned run is from this evaluation."""
        usual = {name: row["hparams"][name] for name in ("beam_size", "alpha", "extra_length")}
        same = (row["checkpoint"]["name"], row["split"]) == (self.checkpoint, self.split)
        return same and {**usual, **self.decoding}.items() <= row["decoding"].items()


@dataclasses.dataclass(frozen=True)
class Synthetic:
    """Additional training pairs: monolingual text and its translations by one or more runs.

    Attributes:
        path: Path of the two files, without the language suffixes.
        runs: `PlannedRun`s of the translation models, which form an ensemble.
        checkpoint: Name of the checkpoint to use from each run, such as "best".
        captions: Whether to translate the target-language captions of Multi30k's task 2 (back-translation). Otherwise,
            the runs translate the source side of the training text.
        tag: Text in front of each synthetic source.
        copies: Number of additional copies of the training text, which balance real and synthetic pairs.
    """

    path: str
    runs: tuple
    checkpoint: str
    captions: bool = False
    tag: str = ""
    copies: int = 0


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """Run of an experiment.

    Attributes:
        problem, preset: Names of the problem and of the hparams.
        seed: Seed of the run.
        overrides: {field: value} of changed hparams.
        settings: {parameter: value} of changed parameters of the problem.
        evaluations: List of `Evaluation`s, or None for the default list.
        synthetic: Additional training pairs, `Synthetic`, or None.
    """

    problem: str
    preset: str
    seed: int = 1
    overrides: dict = dataclasses.field(default_factory=dict)
    settings: dict = dataclasses.field(default_factory=dict)
    evaluations: tuple | None = None
    synthetic: Synthetic | None = None

    @property
    def name(self):
        """Name of the run directory. It contains a digest of all hparams, so it changes when the preset changes."""
        changes = "".join(f"-{field}={value}" for field, value in {**self.overrides, **self.settings}.items())
        fields = dataclasses.asdict(load_hparams(self.preset, **self.overrides))
        fields = {name: value for name, value in fields.items() if value != DEFAULTS[name]}
        digest = hashlib.sha256(repr((fields, self.settings)).encode()).hexdigest()[:8]
        return f"{self.problem}-{self.preset}-{self.seed}{changes[:100].replace('/', '-')}-{digest}"

    def flags(self):
        return [
            f"--problem={self.problem}", f"--hparams={self.preset}", f"--seed={self.seed}",
            *(f"--{field}={value}" for field, value in self.overrides.items()),
            *(part for field, value in self.settings.items() for part in ("--set", f"problem.{field}={value}")),
        ]  # fmt: skip

    def planned_evaluations(self):
        """Return `evaluations`, or the default list if `evaluations` is None."""
        checkpoints = ("best", "averaged", *(["ema"] if self.overrides.get("ema_decay") else []))
        return self.evaluations or [Evaluation(name, split) for name in checkpoints for split in SPLITS]

    def matches(self, row):
        """Return whether a result row is from this run, with the current hparams of the preset."""
        changes = changed_fields(row["preset"], row["hparams"])
        changes.pop("seed", None)
        same = (row["problem"], row["preset"], row["seed"]) == (self.problem, self.preset, self.seed)
        return same and row.get("settings", {}) == self.settings and changes == self.overrides


def short(seed=1, **changes):
    """Return a run of `tiny_short`. As in the paper's Table 3, the evaluations do not average checkpoints."""
    evaluations = [Evaluation("last", split) for split in SPLITS]
    return PlannedRun("multi30k_ende_tok", "tiny_short", seed, changes, evaluations=evaluations)


def variations(name, *values, seeds=(1, 2)):
    """Return small versions of the runs in a row of Table 3, for each seed and each value of the field `name`."""
    return [short(seed, **{name: value}) for seed in seeds for value in values]


def better(seed=1, synthetic=None, **changes):
    """Return a run of `tiny` with smaller batches, without early stopping, and with the given changes of hparams."""
    usual = {"batch_tokens": 2048, "learning_rate_scale": 1.3, "train_steps": 12_000, "patience": None}
    steps = {"eval_steps": 240, "decode_steps": 1200, "checkpoint_steps": 240}
    overrides = {**usual, **steps, **changes}
    return PlannedRun("multi30k_ende_tok", "tiny", seed, overrides, extra(synthetic), synthetic=synthetic)


def extra(synthetic):
    """Return the problem settings that add synthetic pairs to the training text, or {} if `synthetic` is None."""
    return {"extra_train": synthetic.path} if synthetic else {}


def english_parser(seed, problem="parsing_english", settings=None, **changes):
    """Return the run of a parser. Validation uses few beams to save time: 1 during training and 4 at the end."""
    evaluations = [Evaluation("ema", split, {"beam_size": beams}) for split, beams in (("validation", 4), ("test", 21))]
    overrides = {"eval_steps": 2000, "beam_size": 1, **changes}
    return PlannedRun(problem, "parsing_small", seed, overrides, {"vocab_size": 4000, **(settings or {})}, evaluations)


def semisupervised_parser(seed, **changes):
    """Return the run of a parser that also trains on automatically parsed trees."""
    settings = {"auto_dir": "runs/reproduce/auto", "gold_share": 0.5}
    return english_parser(seed, "parsing_english_semisupervised", settings, **changes)


def parser_variant(**changes):
    """Return a short run of a parser with the given changes of hparams, evaluated only on the validation split."""
    overrides = {"train_steps": 4000, "eval_steps": 2000, "beam_size": 1, **changes}
    evaluations = [Evaluation("ema", "validation", {"beam_size": 4})]
    return PlannedRun("parsing_english", "parsing_small", 1, overrides, {"vocab_size": 4000}, evaluations)


def length_penalties(seed):
    """Return a run of `tiny`, evaluated with several exponents of the length penalty."""
    alphas = (0.0, 0.6, 1.0, 1.3, 1.6, 2.0)
    evaluations = [Evaluation("averaged", "validation", {"alpha": alpha}) for alpha in alphas]
    return PlannedRun("multi30k_ende_tok", "tiny", seed, evaluations=evaluations)


def published(problem, seed=1, synthetic=None):
    """Return a run of `tiny` on tokenized text, evaluated on all test sets with published results."""
    evaluations = [Evaluation(name, split) for name in ("best", "averaged") for split in SPLITS]
    more = [Evaluation("averaged", split) for split in ("test_2017", "test_coco")]
    return PlannedRun(
        problem, "tiny", seed, settings=extra(synthetic), evaluations=evaluations + more, synthetic=synthetic
    )


PUBLISHED = [published("multi30k_ende_tok", seed) for seed in (1, 2, 3)]
TAUGHT = Synthetic("runs/reproduce/taught", tuple(PUBLISHED), "averaged")
BACK = Synthetic(
    "runs/reproduce/back", (PlannedRun("multi30k_deen_tok", "tiny_short", overrides={"train_steps": 2000}),), "best",
    captions=True, tag="<bt>", copies=4,
)  # fmt: skip
CAPTIONS = "**/train.lc.norm.tok.[1-5].{language}.gz"
"""Pattern for the names of the caption files in `--raw_dir`."""
EXPERIMENTS = {
    # The setup of Wu et al. (2021) with three seeds, the same setup for French, and raw text in several directions.
    "multi30k": [
        *PUBLISHED,
        published("multi30k_enfr_tok"),
        *(PlannedRun(f"multi30k_{pair}", "tiny") for pair in ("ende", "deen", "enfr")),
    ],
    "length_penalty": [length_penalties(seed) for seed in (1, 2, 3)],
    "table3": [
        *(short(seed) for seed in (1, 2, 3)),
        *variations("num_heads", 1, 2, 8),  # (A)
        *variations("d_k", 16),  # (B)
        *variations("num_layers", 2, 3),  # (C)
        *variations("d_ff", 128, 512),
        *variations("dropout", 0.1),  # (D)
        *variations("label_smoothing", 0.0, 0.2),
        *variations("positions", "learned"),  # (E)
        # These changes have larger effects on perplexity or BLEU.
        *variations("num_heads", 16, seeds=[1]),
        *variations("d_k", 8, seeds=[1]),
        *variations("num_layers", 6, seeds=[1]),
        short(num_layers=6, norm="pre"),  # pre-norm, because six layers with post-norm do not learn
        *variations("d_model", 64, 256, seeds=[1]),
        *variations("dropout", 0.0, 0.2, seeds=[1]),
    ],
    # Train only on sentences of at most 15 tokens plus EOS. The evaluations include longer sentences.
    "extrapolation": [short(max_length=16), short(max_length=16, positions="learned")],
    "parsing": [
        *(
            PlannedRun("toy_parsing", "parsing_toy", seed, evaluations=[Evaluation("best", "test")])
            for seed in (1, 2, 3)
        ),
        *(english_parser(seed) for seed in (1, 2)),
    ],
    "parsing_variants": [
        parser_variant(),
        parser_variant(dropout=0.2),
        parser_variant(dropout=0.2, model="transformer"),  # without word-aligned heads
        parser_variant(word_dropout=0.0),
        parser_variant(label_smoothing=0.0),
    ],
    # Training also uses automatically parsed trees. docs/reproduce.md describes how to create them.
    "parsing_auto_trees": [
        *(semisupervised_parser(seed) for seed in (1, 2)),
        *(semisupervised_parser(seed, train_steps=20_000) for seed in (1, 2)),  # twice as long
    ],
    # The setup of Wu et al. (2021) with back-translated captions.
    "back_translation": [published("multi30k_ende_tok", synthetic=BACK)],
    # Improvements to `tiny` that add no parameters. `ema_decay` adds a checkpoint, but does not affect training.
    "tiny_plus": [
        better(),
        better(norm="pre"),
        *(better(seed, TAUGHT, ema_decay=0.999) for seed in (1, 2, 3)),
        better(r_drop=2.0),  # differs from the first run only in R-Drop
        *(better(synthetic=BACK, ema_decay=0.999, train_steps=steps) for steps in (12_000, 26_400)),  # with captions
    ],
}


def main(arguments):
    parser = Parser(__doc__, "file for the rows (default docs/results/EXPERIMENT.jsonl)")
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_corpus()
    parser.add_argument("--runs", default="runs/reproduce", help="folder of the runs (default %(default)s)")
    parser.add_argument("--precision", default="float32", help="precision of training (default %(default)s)")
    parser.add_argument("--list", action="store_true", help="list finished and open runs and exit")
    flags = parser.parse_args(arguments)
    results = Path(flags.json or f"docs/results/{flags.experiment}.jsonl")
    if not flags.list and not any(open_evaluations(planned, results) for planned in EXPERIMENTS[flags.experiment]):
        report(f"{results} has all rows of {flags.experiment}. To repeat its runs, write to another file (--json).")
    for planned in EXPERIMENTS[flags.experiment]:
        if flags.list:
            report(f"{'open' if open_evaluations(planned, results) else 'done'}  {planned.name}")
            continue
        with lock_file(Path(flags.runs) / f"{planned.name}.lock") as lock:
            missing = open_evaluations(planned, results)
            if missing and lock:
                report(f"{planned.name}: {len(missing)} open rows")
                if not planned.synthetic or synthesize(planned, flags):
                    run = train(planned, flags, lock, any(one.checkpoint == "averaged" for one in missing))
                    evaluate(run, missing, results, lock)
            elif missing:
                report(f"{planned.name}: another process is working on it")


def open_evaluations(planned, path):
    """Return the evaluations of a run that have no row in the file `path`."""
    rows = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else []:
        with contextlib.suppress(ValueError):  # the line is blank or truncated
            rows.append(json.loads(line))
    rows = list(filter(planned.matches, rows))
    return [evaluation for evaluation in planned.planned_evaluations() if not any(map(evaluation.matches, rows))]


def train(planned, flags, lock, averaged=True):
    """Train a run and, if `averaged` is true, average its last checkpoints. Return the run directory."""
    run, raw_dir = Path(flags.runs) / planned.name, [f"--raw_dir={flags.raw_dir}"] if flags.raw_dir else []
    run_flags = [*raw_dir, f"--data_dir={flags.data_dir}", f"--precision={flags.precision}", f"--output_dir={run}"]
    python("train", *planned.flags(), *run_flags, lock=lock)
    if averaged:
        python("average", f"--run={run}", "--scores=off", lock=lock)
    return run


def evaluate(run, evaluations, results, lock):
    """Evaluate a run and append the result rows to a file."""
    for one in evaluations:
        search = [f"--{name}={value}" for name, value in one.decoding.items()]
        where = [f"--run={run}", f"--checkpoint={one.checkpoint}", f"--split={one.split}"]
        python("evaluate", *where, *search, f"--results={results}", lock=lock)


def synthesize(planned, flags):
    """Create the synthetic pairs of a run. First train the translation models if necessary.

    Returns:
        Whether the pairs exist now. They may be missing if another process is working on them or on one of the models.

    Raises:
        UserError: `--raw_dir` has no captions.
    """
    synthetic = planned.synthetic
    problem = load_problem(planned.problem, raw_dir=flags.raw_dir, data_dir=flags.data_dir)
    languages = (problem.source, problem.target)
    outputs = [Path(f"{synthetic.path}.{language}") for language in languages]
    sides = [Path(f"{synthetic.path}.new.{language}") for language in languages]
    given, translated = sides[::-1] if synthetic.captions else sides
    with lock_file(Path(f"{synthetic.path}.lock")) as lock:
        if not lock:
            report(f"{synthetic.path}: another process is working on it")
        elif not outputs[1].exists():
            texts = captions(flags.raw_dir, problem.target) if synthetic.captions else sources(problem)
            runs = []
            for model in synthetic.runs:
                with lock_file(Path(flags.runs) / f"{model.name}.lock") as model_lock:
                    if not model_lock:
                        report(f"{model.name}: another process is working on it")
                        return False
                    runs.append(train(model, flags, model_lock, synthetic.checkpoint == "averaged"))
            first, *others = runs
            with atomic_open(given) as file:
                file.writelines(f"{text}\n" for text in texts)
            ensemble = [f"--run={first}", *(f"--ensemble={run}" for run in others)]
            files = ["--engine=auto", f"--input={given}", f"--output={translated}"]
            python("translate", *ensemble, f"--checkpoint={synthetic.checkpoint}", *files, lock=lock)
            real = [*problem.examples("train")] * synthetic.copies
            new = ((f"{synthetic.tag} {source}".strip(), target) for source, target in zip(*map(read_lines, sides)))
            for path, side in zip(outputs, zip(*itertools.chain(real, new))):
                with atomic_open(path) as file:
                    file.writelines(f"{text}\n" for text in side)
    return outputs[1].exists()


def sources(problem):
    """Yield the source side of the training text."""
    return (source for source, _ in problem.examples("train"))


def captions(raw_dir, language):
    """Return the captions of Multi30k's task 2 in a language, about 145,000 lines.

    Raises:
        UserError: `raw_dir` does not contain them.
    """
    pattern = CAPTIONS.format(language=language)
    files = sorted(Path(raw_dir or ".").glob(pattern))
    if not files:
        raise UserError(
            f"{raw_dir or 'the working directory'} does not contain the captions of Multi30k's task 2 ({pattern}). "
            "Set --raw_dir to their folder."
        )
    return [line for file in files for line in read_lines(file)]


def python(command, *flags, lock):
    """Run a command of the package, and pass SIGTERM on to it.

    Args:
        command: Name of the command.
        *flags: Flags of the command.
        lock: Locked file of the run. The command inherits the lock and keeps it even if this process is killed.

    Raises:
        SystemExit: The command failed or was interrupted.
    """
    arguments = [sys.executable, "-m", f"keras_transformer.{command}", *flags]
    process = subprocess.Popen(arguments, pass_fds=[lock.fileno()])
    received = []

    def stop(number, frame):
        received.append(number)
        if number != signal.SIGINT:  # the terminal sends SIGINT to both processes
            process.send_signal(number)

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    status = process.wait()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    if status or received:
        raise SystemExit(status if status > 0 else 128 - status if status else 128 + received[0])


if __name__ == "__main__":
    run_command(main)
