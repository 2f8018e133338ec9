"""Measure the throughput and the latency of the server with 1, 8 and 64 clients.

    python benchmarks/serve.py --run=runs/multi30k --json=docs/results/serve.jsonl
    python benchmarks/serve.py --run=runs/multi30k --clients=64 --seconds=600 --json=docs/results/serve.jsonl

The benchmark starts `python -m keras_transformer.serve` in a process on this machine. Each client sends a sentence of
the test split, waits for the answer and immediately sends the next sentence. All clients run in one thread of the
benchmark's process, which shares the cores with the server. `wrong` counts the answers that differ from the output of
`Translator`, and the streams that end with an error. Latencies are measured from request to answer, in milliseconds.
The benchmark samples the server's memory every ten seconds. `memory_mb` contains two of these samples, one after a
tenth of the time (at the beginning if there are at most ten samples) and one at the end.
"""

import asyncio
import collections
import http.client
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from command_line import Parser, add_row, percentiles, print_table

from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.cli.output import report
from keras_transformer.decoding.loading import load_translator
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError

ENGINES = ("keras", "ctranslate2")
WARM_UP = 5  # duration of the warm-up before each measurement, in seconds


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--run", required=True, help="run directory or export")
    parser.add_argument("--reference", help="run for the expected translations, if --run is an export (default: --run)")
    parser.add_argument("--clients", default="1,8,64", help="comma-separated numbers of clients (default %(default)s)")
    parser.add_argument(
        "--seconds", type=positive_int, default=30, help="seconds for each number of clients (default %(default)s)"
    )
    parser.add_argument(
        "--sentences", type=positive_int, default=1000, help="number of test sentences (default %(default)s)"
    )
    parser.add_argument("--engine", choices=ENGINES, default="keras", help="engine of a run (default %(default)s)")
    parser.add_argument("--server", default="", help="more flags for serve, separated by spaces")
    flags = parser.parse_args(arguments)
    counts = [int(text) for text in flags.clients.split(",") if text.isdecimal() and int(text)]
    if not counts:
        raise UserError(f"--clients must be positive numbers separated by commas, got {flags.clients!r}.")
    questions = questions_of(flags.reference or flags.run, flags.sentences, flags.engine)
    rows = []
    with Server(flags.run, [f"--engine={flags.engine}", *flags.server.split()]) as server:
        about = server.about()
        for count in counts:
            server.load(questions, count, WARM_UP)
            load = server.load(questions, count, flags.seconds)
            latencies, _ = load.pop("latencies"), load.pop("first_lines")
            rows.append(add_row({
                "benchmark": "serve", "problem": about["problem"], "model": about["model"], "engine": flags.engine,
                "clients": count, "seconds": flags.seconds, "answers": len(latencies), **percentiles(latencies), **load,
            }, flags.json))  # fmt: skip
            report(f"measured {count} clients")
    print_table("server", rows)


def questions_of(run_dir, count, engine="keras"):
    """Return [(sentence, translation), ...] for at most `count` test sentences of a run."""
    run = Run.open(run_dir)
    texts = [source for source, _ in run.problem.examples("test")][:count]
    return list(zip(texts, (best.text for (best,) in load_translator([run], engine=engine).translate(texts))))


class Server:
    """Context manager that runs the command `serve` in a process.

    Args:
        run_dir: Run directory or export.
        flags: More flags for `serve`.
        environment: Environment variables of the process (default: those of this process).
    """

    def __init__(self, run_dir, flags, environment=None):
        self._command = [sys.executable, "-m", "keras_transformer.serve", f"--run={run_dir}", "--port=0", *flags]
        self._environment = environment

    def __enter__(self):
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, encoding="utf-8", env=self._environment)
        line = self._process.stdout.readline()
        if not line:
            raise UserError("the server did not start; the reason is above")
        self._address = re.search(r"http://(\S+)", line)[1]
        return self

    def __exit__(self, *error):
        self._process.terminate()
        self._process.wait()

    def about(self):
        """Return the server's description of its model."""
        connection = http.client.HTTPConnection(self._address)
        connection.request("GET", "/model")
        return json.loads(connection.getresponse().read())

    def memory(self):
        """Return the resident memory of the server in megabytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024 // 10**6

    def load(self, questions, clients, seconds, stream=False):
        """Let `clients` clients send requests for `seconds` seconds. Return a dict with latencies and other results.

        In the dict, `latencies` contains the time from each request to the end of its answer, and `first_lines` the
        time to the first line of the answer, both in milliseconds. With `stream`, the server can send the first line
        before it has translated the whole text.
        """
        return asyncio.run(self._load(questions, clients, seconds, stream))

    async def _load(self, questions, clients, seconds, stream):
        first = time.monotonic()
        latencies, first_lines, errors, samples = [], [], [], []
        answers = collections.Counter()

        async def client(turn):
            connection = Connection(self._address)
            while time.monotonic() < first + seconds:
                text, expected = questions[turn % len(questions)]
                turn += clients
                began = time.monotonic()
                try:
                    response = await connection.request(text, stream)
                except OSError as error:
                    errors.append(error)
                    connection.close()  # `connection` reconnects at the next request
                    continue
                latencies.append(1000 * (time.monotonic() - began))
                first_lines.append(1000 * (response.arrival - began))
                answers[response.body, expected] += 1  # compared later, to leave the cores to the server
            connection.close()

        async def sample_memory():
            while True:
                samples.append(self.memory())
                await asyncio.sleep(10)

        sampling = asyncio.create_task(sample_memory())
        await asyncio.gather(*map(client, range(clients)))
        sampling.cancel()
        total, memory = time.monotonic() - first, [samples[len(samples) // 10], self.memory()]
        return {
            "latencies": latencies, "first_lines": first_lines, "errors": len(errors), "memory_mb": memory,
            "wrong": sum(count for (body, expected), count in answers.items() if translation(body) != expected),
            "sentences_per_second": round(len(latencies) / total, 1),
        }  # fmt: skip


class Connection:
    """HTTP connection of a client that uses little processor time, because the client shares the cores with the server.

    Args:
        address: HOST:PORT of the server.
    """

    def __init__(self, address):
        self._address, self._streams = address, None

    async def request(self, text, stream=False):
        """Request the translation of a text. Return the `Response`.

        Args:
            text: Text to translate.
            stream: Whether the server sends each sentence as soon as it is translated.

        Raises:
            OSError: The connection broke, there was no answer within a minute, or its status was not 200.
        """
        # Send "stream" only if it is true: a server that does not support streams (latency.py --baseline) rejects it.
        body = json.dumps({"texts": [text]} | ({"stream": True} if stream else {})).encode()
        head = f"POST /translate HTTP/1.1\r\nHost: {self._address}\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        async with asyncio.timeout(60):
            if not self._streams:
                self._streams = await asyncio.open_connection(*self._address.split(":"))
            reader, writer = self._streams
            writer.write(request)
            return await Response.read(reader)

    def close(self):
        """Close the connection. The next request opens a new one."""
        if self._streams:
            self._streams[1].close()
        self._streams = None


class Response:
    """HTTP response, and the callbacks of the parser that reads it.

    Attributes:
        body: Content of the response, bytes.
        arrival: `time.monotonic()` at which the first part of the body arrived.
    """

    def __init__(self):
        self.body, self.arrival, self._is_complete = b"", None, False

    @classmethod
    async def read(cls, reader):
        """Read a response from an `asyncio.StreamReader`.

        Raises:
            ConnectionError: The connection ended, the response is not HTTP, or its status is not 200.
        """
        import httptools

        response = cls()
        parser = httptools.HttpResponseParser(response)
        while not response._is_complete:
            if not (data := await reader.read(1 << 16)):
                raise ConnectionError("the server closed the connection")
            try:
                parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise ConnectionError(str(error)) from None
        if parser.get_status_code() != 200:
            raise ConnectionError(response.body.decode())
        return response

    def on_body(self, data):
        self.arrival = self.arrival or time.monotonic()
        self.body += data

    def on_message_complete(self):
        self._is_complete = True


def translation(body):
    """Return the translation in the body of a response, or None if a streamed body ends with an error."""
    answer = json.loads(body.splitlines()[-1])
    return None if "error" in answer else answer["translations"][0][0]["text"]


if __name__ == "__main__":
    run_command(main)
