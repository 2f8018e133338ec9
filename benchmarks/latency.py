"""Measure the latency of translation with each engine: a sentence, a command, a file, and the server under load.

    python benchmarks/latency.py --run=runs/toy_ende-toy --json=docs/results/latency.jsonl
    python benchmarks/latency.py --run=runs/toy_ende-toy --baseline=../before --json=docs/results/latency.jsonl

| workload | measured calls |
|---|---|
| single | `Translator.translate` with one test sentence at a time; `first_ms` is the median time of the first calls |
| cold_start | `python -m keras_transformer.translate` with one line, from start to exit |
| lines_1000 | the same command with 1,000 lines |
| server_N | requests by N clients, each with one sentence at a time |
| text_64 | requests by one client for a text of 64 lines; `first_ms` is the median time to the first line |
| stream_64 | the same requests with streamed answers |

Each measurement starts the engine in a new process. In each round, engines and checkouts take turns, so that other
programs slow down all of them alike. `--baseline` is another checkout of this project, and `over_baseline` is the ratio
of the median latency to that of the baseline. The clients run in the benchmark's own process and share the
CPU cores with the server. `wrong` counts server answers that differ from translations by the same engine without a
server. The engine `keras_xla` is Keras with XLA: the commands of `cold_start` and `lines_1000` compile every search,
the other workloads only the search for a single sentence. The times exclude the conversion for CTranslate2.
"""

import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from command_line import Parser, add_row, percentiles, print_table, timed
from serve import Server, questions_of

from keras_transformer.backend.loading import chosen_backend
from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.cli.output import report
from keras_transformer.conversion.cache import converted_files
from keras_transformer.runs.provenance import git_revision
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
ENGINES = {
    "keras": ("keras", "off"),
    "keras_xla": ("keras", "auto"),
    "ctranslate2": ("ctranslate2", "off"),
}
"""Engines to measure, {name: (value of the flag `--engine`, value of the flag `--jit_compile` of `serve`)}."""
WORKLOADS = ("single", "cold_start", "lines_1000", *(f"server_{2**n}" for n in range(7)), "text_64", "stream_64")
LINES = 1000
WARM_UP = 3  # duration in seconds of the requests that warm up a server


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--run", required=True, help="run directory")
    parser.add_names("--engines", ENGINES, ",".join(ENGINES))
    parser.add_names("--workloads", WORKLOADS, "single,cold_start,lines_1000,server_1,server_64")
    parser.add_argument(
        "--baseline", type=Path, metavar="FOLDER", help="another checkout of this project to compare with"
    )
    parser.add_argument("--rounds", type=positive_int, default=3, help="number of rounds (default %(default)s)")
    parser.add_argument("--seconds", type=positive_int, default=10, help="seconds per server (default %(default)s)")
    parser.add_argument(
        "--sentences", type=positive_int, default=200, help="sentences for the workload single (default %(default)s)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="PNG or SVG plot of latency against load")
    flags = parser.parse_args(arguments)
    if flags.baseline and not (flags.baseline / "keras_transformer").is_dir():
        raise UserError(f"--baseline must be a checkout of this project, got {flags.baseline}.")
    checkouts = [flags.baseline.absolute()] if flags.baseline else []
    measured = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        benchmark = Latency(flags, Path(folder))
        for number in range(flags.rounds):
            for workload in flags.workloads:
                for engine in flags.engines:
                    for checkout in [*checkouts, ROOT]:
                        measured[workload, engine, checkout].append(benchmark.measure(workload, engine, checkout))
            report(f"finished round {number + 1} of {flags.rounds}")
    rows, medians, about = [], {}, benchmark.run
    for (workload, engine, checkout), rounds in measured.items():
        row = {
            "benchmark": "latency", "problem": about.config["problem"]["name"], "model": about.path.name,
            "engine": engine, "backend": chosen_backend() if ENGINES[engine][0] == "keras" else None,
            "workload": workload, "commit": git_revision(checkout), "rounds": flags.rounds, **summary(rounds),
        }  # fmt: skip
        before = medians.setdefault((workload, engine), row["p50_ms"])
        row["over_baseline"] = row["p50_ms"] / before if checkouts and checkout == ROOT else None
        rows.append(add_row(row, flags.json))
    print_table("latencies", rows)
    if flags.plot:
        draw([row for row in rows if row["commit"] == git_revision(ROOT)], flags.plot)


def summary(rounds):
    """Combine rounds of a workload into latency percentiles, medians of `first` and of the rates, and error counts."""
    latencies = [latency for one in rounds for latency in one["latencies"]]
    first = [milliseconds for one in rounds for milliseconds in one.get("first", ())]
    return {
        "count": len(latencies), "first_ms": round(statistics.median(first), 1) if first else None,
        **percentiles(latencies), "max_ms": round(max(latencies), 1),
        "per_second": round(statistics.median(one["per_second"] for one in rounds), 1),
        "wrong": sum(one.get("wrong", 0) for one in rounds), "errors": sum(one.get("errors", 0) for one in rounds),
    }  # fmt: skip


class Latency:
    """Measurements of the workloads.

    A result contains `latencies` and, for most workloads, `first` (both lists of times in ms), and `per_second`
    (sentences per second). `first` contains the times of first calls or of first lines.

    Args:
        flags: The flags of this program.
        folder: `Path` of the folder for input files.
    """

    def __init__(self, flags, folder):
        self.flags, self.folder, self.run = flags, folder, Run.open(flags.run)
        texts = [source for source, _ in self.run.problem.examples("test")]
        self.texts = (texts * -(-LINES // len(texts)))[:LINES]
        if "ctranslate2" in flags.engines:
            converted_files(self.run)
        self.questions = {}
        if any(workload.startswith(("server", "text", "stream")) for workload in flags.workloads):
            self.questions = {name: questions_of(flags.run, LINES, ENGINES[name][0]) for name in flags.engines}

    def measure(self, workload, engine, checkout):
        """Measure a workload once with the package in the folder `checkout`."""
        name, _, count = workload.partition("_")
        # Without PYTHONSAFEPATH, `python -m` would import the package in the working directory.
        environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
        if name == "server":
            return self.server(int(count), engine, environment)
        if name in ("text", "stream"):
            return self.text(int(count), name == "stream", engine, environment)
        if name == "single":
            return self.single(engine, environment)
        return self.command(LINES if name == "lines" else 1, engine, environment)

    def single(self, engine, environment):
        program = ROOT / "benchmarks" / "engines" / "run_single.py"
        command = [program, self.flags.run, *ENGINES[engine], self.input(self.flags.sentences)]
        first, *others = json.loads(self.output(command, environment))
        return {
            "latencies": [1000 * seconds for seconds in others], "first": [1000 * first],
            "per_second": len(others) / sum(others),
        }  # fmt: skip

    def command(self, count, engine, environment):
        name, compilation = ENGINES[engine]
        flags = [f"--run={self.flags.run}", f"--engine={name}", f"--input={self.input(count)}"]
        flags += ["--jit_compile"] if compilation == "auto" else []
        command = ["-m", "keras_transformer.translate", *flags]
        _, seconds = timed(self.output, command, environment)
        return {"latencies": [1000 * seconds], "per_second": count / seconds}

    def server(self, clients, engine, environment):
        with self.started(engine, environment) as server:
            first = server.load(self.questions[engine], 1, 0.1)["latencies"]
            server.load(self.questions[engine], clients, WARM_UP)
            load = server.load(self.questions[engine], clients, self.flags.seconds)
        return {"per_second": load.pop("sentences_per_second"), "first": first[:1], **load}

    def started(self, engine, environment):
        name, compilation = ENGINES[engine]
        return Server(self.flags.run, [f"--engine={name}", f"--jit_compile={compilation}"], environment)

    def text(self, count, stream, engine, environment):
        questions = self.questions[engine][:count]
        text = tuple(map("\n".join, zip(*questions)))
        with self.started(engine, environment) as server:
            server.load([text], 1, WARM_UP, stream)
            load = server.load([text], 1, self.flags.seconds, stream)
        per_second = len(questions) * load.pop("sentences_per_second")
        return {"first": load.pop("first_lines"), "per_second": per_second, **load}

    def input(self, count):
        """Write the first `count` test sentences to a file, one per line, and return the path of the file."""
        path = self.folder / f"{count}.txt"
        path.write_text("".join(f"{text}\n" for text in self.texts[:count]), encoding="utf-8")
        return path

    def output(self, command, environment):
        """Run a Python program in a new process and return its output.

        Raises:
            UserError: The program failed.
        """
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, encoding="utf-8")
        if done.returncode:
            raise UserError(f"{' '.join(map(str, command))} failed: {done.stderr.strip().splitlines()[-1]}")
        return done.stdout


def draw(rows, path):
    """Plot the latency of the server against its load, with a line for each engine and percentile.

    Raises:
        UserError: The rows have no measurements of a server, or Matplotlib is not installed.
    """
    from keras_transformer.visualization.plots import new_figure, save

    rows = [row for row in rows if row["workload"].startswith("server")]
    if not rows:
        raise UserError("--plot requires a workload server_N. Add server_1 to --workloads, for example.")
    figure = new_figure(7, 4)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    for engine, color in zip(ENGINES, ("C0", "C2", "C1")):
        found = [row for row in rows if row["engine"] == engine]
        for share, style in ((50, "-"), (95, "--")) if found else ():
            points = [(row["per_second"], row[f"p{share}_ms"]) for row in found]
            axes.loglog(*zip(*points), style, color=color, marker="o", markersize=4, label=f"{engine}, p{share}")
        for row in found:
            clients = row["workload"].partition("_")[2]
            axes.annotate(clients, (row["per_second"], row["p50_ms"]), (3, -10), textcoords="offset points", fontsize=8)
    axes.set(xlabel="answers per second (labels: clients)", ylabel="latency in ms")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    save(figure, path)


if __name__ == "__main__":
    run_command(main)
