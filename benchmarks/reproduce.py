"""The project's experiments, a command each, which does what is still open: `python benchmarks/reproduce.py multi30k`.

    python benchmarks/reproduce.py multi30k --raw_dir=FOLDER
    python benchmarks/reproduce.py table3 --list

An experiment is a list of trainings. Each is trained, and checkpoints of it are evaluated, by default the best one and
the mean of the last ones, on the validation and the test split; every evaluation is a row of
docs/results/EXPERIMENT.jsonl. What has its row is done, on whatever backend and in whatever precision, which rows tell,
so that the command may be stopped anywhere, and repeated: a training goes on from its last checkpoint. `--list` tells
what is done and what is open.

Several processes of one experiment may run beside each other: each takes trainings that no other is at, so that small
models, which gain little from a second core, may have one each (`taskset -c 1 python …`). With KERAS_BACKEND=jax the
same on JAX; `--precision` is that of the trainings.
"""

import dataclasses
import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path

from command_line import Parser, check_flags

from keras_transformer.cli.arguments import run_command
from keras_transformer.cli.output import report
from keras_transformer.config.hparams import HParams, changed_fields, load_hparams
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.files import atomic_open, lock_file

SPLITS = ("validation", "test")
USUAL = {field.name: field.default for field in dataclasses.fields(HParams)}
LONGEST = 100
"""Characters of the changes that the name of a run's directory holds."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One row: a checkpoint decoded on a split.

    Attributes:
        decoding: What of the beam search is not the hparams', {"beam_size", "alpha", "extra_length"}.
    """

    checkpoint: str
    split: str
    decoding: dict = dataclasses.field(default_factory=dict)

    def made(self, row):
        """Whether a row of the training is this one."""
        usual = {name: row["hparams"][name] for name in ("beam_size", "alpha", "extra_length")}
        same = (row["checkpoint"]["name"], row["split"]) == (self.checkpoint, self.split)
        return same and {**usual, **self.decoding}.items() <= row["decoding"].items()


@dataclasses.dataclass(frozen=True)
class Training:
    """One training: what is trained, which of the preset's fields and of the problem's parameters differ, its rows.

    Attributes:
        evaluations: Of what; by default of every checkpoint on both splits.
        teachers: Trainings of which, together, translations of the training text are further training pairs.
    """

    problem: str
    preset: str
    seed: int = 1
    overrides: dict = dataclasses.field(default_factory=dict)
    settings: dict = dataclasses.field(default_factory=dict)
    evaluations: tuple | None = None
    teachers: tuple = ()

    @property
    def name(self):
        changes = "".join(f"-{field}={value}" for field, value in {**self.overrides, **self.settings}.items())
        # A preset that was changed makes another training; and a file's name may have 255 characters.
        fields = load_hparams(self.preset, **self.overrides)
        fields = {name: value for name, value in dataclasses.asdict(fields).items() if value != USUAL[name]}
        digest = hashlib.sha256(repr((fields, self.settings)).encode()).hexdigest()[:8]
        return f"{self.problem}-{self.preset}-{self.seed}{changes[:LONGEST]}-{digest}"

    def flags(self):
        return [
            f"--problem={self.problem}", f"--hparams={self.preset}", f"--seed={self.seed}",
            *(f"--{field}={value}" for field, value in self.overrides.items()),
            *(part for field, value in self.settings.items() for part in ("--set", f"problem.{field}={value}")),
        ]  # fmt: skip

    def rows(self):
        """Return the evaluations, a row each."""
        checkpoints = ("best", "averaged", *(["ema"] if self.overrides.get("ema_decay") else []))
        return self.evaluations or [Evaluation(name, split) for name in checkpoints for split in SPLITS]

    def made(self, row):
        """Whether a row is of this training."""
        theirs = changed_fields(row["preset"], row["hparams"])  # the preset may have changed since
        theirs.pop("seed", None)
        same = (row["problem"], row["preset"], row["seed"]) == (self.problem, self.preset, self.seed)
        return same and row.get("settings", {}) == self.settings and theirs == self.overrides


def short(seed=1, **changes):
    """A short training of `tiny`, whose last checkpoint is evaluated as it is, as the paper does for Table 3."""
    evaluations = [Evaluation("last", split) for split in SPLITS]
    return Training("multi30k_ende_tok", "tiny_short", seed, changes, evaluations=evaluations)


def table3(name, values):
    """The trainings of a row of Table 3 in small: one field changed."""
    return [short(**{name: value}) for value in values]


def better(seed=1, settings=None, teachers=(), **changes):
    """A training of `tiny` with smaller updates and what may make it better."""
    usual = {"batch_tokens": 2048, "learning_rate_scale": 1.3, "train_steps": 12_000, "patience": None}
    often = {"eval_steps": 240, "decode_steps": 1200, "checkpoint_steps": 240}
    return Training(
        "multi30k_ende_tok", "tiny", seed, {**usual, **often, **changes}, settings or {}, teachers=tuple(teachers)
    )


def parser(seed, overrides, settings):
    """The training of a parser of English, validated with one beam, which is quick, evaluated with the paper's 21."""
    overrides = {**overrides, "beam_size": 1}
    evaluations = [Evaluation("averaged", "test", {"beam_size": 21})]
    return Training("parsing_english", "parsing_small", seed, overrides, settings, evaluations)


PUBLISHED = [Training("multi30k_ende_tok", "tiny", seed) for seed in (1, 2, 3)]
TAUGHT = "runs/reproduce/taught"
"""Beginning of the names of the files of what teachers translated."""
EXPERIMENTS = {
    # Wu et al. 2021, by seeds; the same on raw text; other directions.
    "multi30k": [
        *PUBLISHED,
        *(Training(f"multi30k_{pair}", "tiny") for pair in ("ende", "deen", "enfr")),
    ],
    # The length penalty of the published figure's trainings, where it may be chosen.
    "length_penalty": [
        Training(
            "multi30k_ende_tok",
            "tiny",
            seed,
            evaluations=[
                Evaluation("averaged", "validation", {"alpha": alpha}) for alpha in (0.0, 0.6, 1.0, 1.3, 1.6, 2.0)
            ],
        )
        for seed in (1, 2, 3)
    ],
    "table3": [
        short(),
        short(seed=2),  # by how much seeds differ
        *table3("num_heads", (1, 2, 8, 16)),  # (A)
        *table3("d_k", (8, 16)),  # (B)
        *table3("num_layers", (2, 3, 6)),  # (C)
        short(num_layers=6, norm="pre"),  # the six above learn nothing
        *table3("d_model", (64, 256)),
        *table3("d_ff", (128, 512)),
        *table3("dropout", (0.0, 0.1, 0.2)),  # (D)
        *table3("label_smoothing", (0.0, 0.2)),
        *table3("positions", ("learned",)),  # (E)
    ],
    # Sentences longer than any in training, which has those of 15 pieces at most.
    "extrapolation": [short(max_length=16), short(max_length=16, positions="learned")],
    "parsing": [
        *(Training("toy_parsing", "parsing_toy", seed, evaluations=[Evaluation("best", "test")]) for seed in (1, 2, 3)),
        *(parser(seed, {"eval_steps": 2000}, {"vocab_size": 4000}) for seed in (1, 2)),
    ],
    # What makes `tiny` better, with as many parameters. An average of the weights changes nothing in training.
    "tiny_plus": [
        better(),
        better(norm="pre"),
        *(better(seed, {"extra_train": TAUGHT}, PUBLISHED, ema_decay=0.999) for seed in (1, 2, 3)),
        better(r_drop=2.0),  # compare with the first row
    ],
}


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--raw_dir", help="folder of the corpus files, where they are on disk")
    parser.add_argument("--data_dir", default="data", help="where prepared corpora are kept (default %(default)s)")
    parser.add_argument("--runs", default="runs/reproduce", help="where runs are kept (default %(default)s)")
    parser.add_argument("--precision", default="float32", help="what trainings compute in (default %(default)s)")
    parser.add_argument("--list", action="store_true", help="list finished and open experiments and exit")
    parser.add_json("file of the rows (default docs/results/EXPERIMENT.jsonl)")
    flags = parser.parse_args(arguments)
    check_flags(flags)
    rows = Path(flags.json or f"docs/results/{flags.experiment}.jsonl")
    for training in EXPERIMENTS[flags.experiment]:
        if flags.list:
            report(f"{'open' if open_evaluations(training, rows) else 'done'}  {training.name}")
            continue
        with lock_file(Path(flags.runs) / f"{training.name}.lock") as alone:
            missing = open_evaluations(training, rows)
            if missing and not alone:
                report(f"{training.name}: another process is at it")
            elif missing:
                do(training, missing, rows, flags, alone)


def open_evaluations(training, path):
    """Return the evaluations of a run that have no row in a file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = list(filter(training.made, map(json.loads, lines)))
    return [evaluation for evaluation in training.rows() if not any(map(evaluation.made, rows))]


def do(training, missing, rows, flags, lock):
    """Trains, averages and evaluates; what of it was done before is quick or left out."""
    report(f"{training.name}: {len(missing)} rows are open")
    if training.teachers and not teach(training, flags):
        return
    run = train(training, flags, lock, any(evaluation.checkpoint == "averaged" for evaluation in missing))
    for one in missing:
        search = [f"--{name}={value}" for name, value in one.decoding.items()]
        what = [f"--run={run}", f"--checkpoint={one.checkpoint}", f"--split={one.split}"]
        python("evaluate", *what, *search, f"--results={rows}", lock=lock)


def train(training, flags, lock, averaged):
    """Trains, and averages if that is asked for; returns the run directory."""
    run, raw_dir = Path(flags.runs) / training.name, [f"--raw_dir={flags.raw_dir}"] if flags.raw_dir else []
    run_flags = [*raw_dir, f"--data_dir={flags.data_dir}", f"--precision={flags.precision}", f"--output_dir={run}"]
    python("train", *training.flags(), *run_flags, lock=lock)
    if averaged:
        python("average", f"--run={run}", "--scores=off", lock=lock)
    return run


def train_alone(training, flags):
    """Train and average. Return the run directory, or None if another process is at work on it."""
    with lock_file(Path(flags.runs) / f"{training.name}.lock") as lock:
        if lock:
            return train(training, flags, lock, averaged=True)
    report(f"{training.name}: another process is at it")
    return None


def teach(training, flags):
    """Write what a training's teachers, an ensemble, translate of the training text. Return whether the file exists."""
    problem = load_problem(training.problem, raw_dir=flags.raw_dir, data_dir=flags.data_dir)
    sources, targets = (Path(f"{TAUGHT}.{language}") for language in (problem.source, problem.target))
    with lock_file(Path(f"{TAUGHT}.lock")) as lock:
        if not lock:
            report(f"{TAUGHT}: another process is at it")
        elif not targets.exists():
            runs = [train_alone(teacher, flags) for teacher in training.teachers]
            if not all(runs):
                return False
            first, *others = runs
            with atomic_open(sources) as file:
                file.writelines(f"{source}\n" for source, _ in problem.examples("train"))
            together = [f"--run={first}", *(f"--ensemble={run}" for run in others), "--checkpoint=averaged"]
            python("translate", *together, f"--input={sources}", f"--output={targets}", lock=lock)
    return targets.exists()


def python(command, *flags, lock):
    """Run a command of the package; a signal to this process is one to the command, and a command's failure the end.

    Args:
        lock: The locked file of the training, which the command keeps locked where this process is killed.

    Raises:
        SystemExit: It failed, or was asked to end.
    """
    arguments, asked = [sys.executable, "-m", f"keras_transformer.{command}", *flags], []
    process = subprocess.Popen(arguments, pass_fds=[lock.fileno()])

    def stop(number, frame):
        asked.append(number)
        if number != signal.SIGINT:  # a terminal's, which sends it to both
            process.send_signal(number)

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    status = process.wait()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    if status:
        raise SystemExit(status if status > 0 else 128 - status)
    if asked:  # when the command was about to end anyway
        raise SystemExit(128 + asked[0])


if __name__ == "__main__":
    run_command(main)
