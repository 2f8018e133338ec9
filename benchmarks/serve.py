"""How many answers a second a server gives, and how long each takes, to one, eight and sixty-four clients.

    python benchmarks/serve.py --run=runs/multi30k --json=docs/results/serve.jsonl
    python benchmarks/serve.py --run=runs/multi30k --clients=64 --seconds=600 --json=docs/results/serve.jsonl

Starts `python -m keras_transformer.serve` as a process of its own, here. Each client asks for one sentence of
the test split at a time and, when it has the answer, at once for the next one; every answer is compared with what
`Translator` says to it (`wrong`). Clients run in one process and take part of the cores. Latencies are from a
request to its answer, in milliseconds; memory is the server's, sampled every ten seconds: `memory_mb` after a tenth of
the time and at its end.
"""

import http.client
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from command_line import Parser, add_row, check_flags, number, print_table

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import run_command
from keras_transformer.cli.output import report
from keras_transformer.utils.errors import UserError

WARM_UP = 5
"""Seconds that are not counted."""


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--run", required=True, help="the run directory, or an export")
    parser.add_argument("--reference", help="the run of an export (default --run)")
    parser.add_argument("--clients", default="1,8,64", help="numbers of clients (default %(default)s)")
    parser.add_argument("--seconds", type=number, default=30, help="for each (default %(default)s)")
    parser.add_argument("--sentences", type=number, default=1000, help="of the test split (default %(default)s)")
    parser.add_argument("--server", default="", help="more flags of serve, divided by blanks")
    parser.add_json()
    flags = parser.parse_args(arguments)
    check_flags(flags)
    counts = [int(text) for text in flags.clients.split(",") if text.isdecimal() and int(text)]
    if not counts:
        raise UserError(f"--clients={flags.clients} takes numbers, divided by commas")
    questions = questions_of(flags.reference or flags.run, flags.sentences)
    rows = []
    with Served(flags.run, flags.server.split()) as served:
        for count in counts:
            served.load(questions, count, WARM_UP)
            found = served.load(questions, count, flags.seconds)
            about = served.about()
            rows.append(add_row({
                "benchmark": "serve", "problem": about["problem"], "model": about["model"], "clients": count,
                "seconds": flags.seconds, **found,
            }, flags.json))  # fmt: skip
            report(f"{count} clients are measured")
    print_table("server", rows)


def questions_of(run_dir, most):
    """Return [(sentence, translation)] of a run's test split."""
    load_keras()
    import keras_transformer as kt
    from keras_transformer.runs.run import Run

    texts = [source for source, _ in Run.open(run_dir).problem.examples("test")][:most]
    return list(zip(texts, (best.text for (best,) in kt.Translator.load(run_dir).translate(texts))))


class Served:
    """A server inside a `with` block, and clients of it."""

    def __init__(self, run_dir, more):
        self._command = [sys.executable, "-m", "keras_transformer.serve", f"--run={run_dir}", "--port=0", *more]

    def __enter__(self):
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, encoding="utf-8")
        line = self._process.stdout.readline()
        if not line:
            raise UserError("the server did not begin")
        self._address = re.search(r"http://([^,]*),", line)[1]
        return self

    def __exit__(self, *error):
        self._process.terminate()
        self._process.wait()

    def about(self):
        """Return the server's own description."""
        connection = http.client.HTTPConnection(self._address)
        connection.request("GET", "/model")
        return json.loads(connection.getresponse().read())

    def memory(self):
        """Return the server's memory, in megabytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) // 1000

    def load(self, questions, clients, seconds):
        """Return the figures of some clients that ask for some seconds."""
        first = time.monotonic()
        latencies, wrong, errors = [], [], []

        def client(turn):
            connection = http.client.HTTPConnection(self._address, timeout=60)
            while time.monotonic() < first + seconds:
                text, expected = questions[turn % len(questions)]
                turn += clients
                began = time.monotonic()
                try:
                    answer = asked(connection, text)
                except (OSError, ValueError, http.client.HTTPException) as error:
                    errors.append(error)
                    connection.close()  # the next request opens it anew
                    continue
                latencies.append(1000 * (time.monotonic() - began))
                if answer != expected:
                    wrong.append(text)

        threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
        for thread in threads:
            thread.start()
        samples = []
        while any(thread.is_alive() for thread in threads):
            samples.append(self.memory())
            for thread in threads:
                thread.join(10 / clients)
        took, early = time.monotonic() - first, samples[len(samples) // 10]
        shares = statistics.quantiles(latencies, n=100, method="inclusive") if len(latencies) > 1 else [0] * 99
        return {
            "answers": len(latencies), "sentences_per_second": round(len(latencies) / took, 1),
            "p50_ms": round(shares[49]), "p95_ms": round(shares[94]), "p99_ms": round(shares[98]),
            "wrong": len(wrong), "errors": len(errors), "memory_mb": [early, samples[-1]],
        }  # fmt: skip


def asked(connection, text):
    """Return the translation of a text.

    Raises:
        ValueError: There was none.
    """
    body = json.dumps({"texts": [text]}).encode()
    connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise ValueError(answer)
    return answer["translations"][0][0]["text"]


if __name__ == "__main__":
    run_command(main)
