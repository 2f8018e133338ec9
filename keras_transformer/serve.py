"""python -m keras_transformer.serve: a trained model behind HTTP."""

import resource
import signal
import socket

from keras_transformer.cli.arguments import (
    Parser,
    add_run_flags,
    alpha,
    beam_size,
    extra_length,
    non_negative_float,
    non_negative_int,
    positive_int,
    report,
    run_command,
    user_path,
)
from keras_transformer.utils.errors import UserError

CONNECTIONS = 1024
"""Most connections at a time; more are refused with 503."""
PACKAGES = "fastapi fastapi-offline prometheus-client uvicorn"
"""Packages that only the server needs: the extra `server` of pyproject.toml."""
OTHER_FILES = 100
"""Files that a process has open beside its connections, at most."""


def main(arguments):
    """Runs the command with a list of arguments."""
    flags = _parse(arguments)
    try:
        import uvicorn

        from keras_transformer.server.application import application
        from keras_transformer.server.connections import impatient
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install {PACKAGES}") from None
    from keras_transformer.server.engines import load_engine
    from keras_transformer.server.limits import Limits

    with _bound(flags.host, flags.port) as listener:  # a port that is taken is said before a model is loaded
        engine = load_engine(
            flags.run, checkpoint=flags.checkpoint, ensemble=flags.ensemble, precision=flags.precision,
            jit_compile=flags.jit_compile, beam_size=flags.beam_size, alpha=flags.alpha,
            extra_length=flags.extra_length,
        )  # fmt: skip
        engine.translate(["."], 1)  # what is compiled at first use is compiled before the first request
        connections = _room_for(CONNECTIONS)
        limits = Limits(flags.max_texts, flags.max_characters, flags.max_bytes, flags.max_waiting, flags.timeout)
        config = uvicorn.Config(
            application(engine, limits, flags.batch_tokens, flags.wait_ms / 1000), lifespan="on", ws="none",
            log_config=None, log_level="warning", access_log=False, server_header=False, limit_concurrency=connections,
            http=impatient(flags.timeout),
            timeout_keep_alive=30, timeout_graceful_shutdown=round(flags.timeout),
        )  # fmt: skip
        host, port = listener.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

        class Server(uvicorn.Server):
            async def startup(self, sockets=None):
                await super().startup(sockets)
                if self.started:
                    report(f"serving {flags.run} on {url}, its interface on {url}/docs; Ctrl-C ends it")

        try:
            Server(config).run(sockets=[listener])
        except OSError as error:  # another one was quicker
            raise UserError(f"--port={port}: {error.strerror}; choose another") from None
        except KeyboardInterrupt:
            # At once, as by SIGTERM: Python would abort where a batch that nobody waits for comes back as it ends.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)


def _parse(arguments):
    parser = Parser(
        "serve",
        "--run=runs/toy_ende-toy",
        "Translates over HTTP, with a page at / for people. Needs the extra [server].",
    )
    add_run_flags(parser)
    parser.add_argument(
        "--ensemble", type=user_path, action="append", default=[], metavar="RUN",
        help="another run of the same corpus, see translate; may be repeated",
    )  # fmt: skip
    parser.add_argument("--precision", choices=("float32", "bfloat16"), help="of a run (default float32)")
    parser.add_argument("--jit_compile", action="store_true", help="of a run: compile with XLA; on JAX it always does")
    parser.add_argument("--beam_size", type=beam_size, help="beams a text, and most translations (default the run's)")
    parser.add_argument("--alpha", type=alpha, help="exponent of the length penalty (default the run's)")
    parser.add_argument("--extra_length", type=extra_length, help="most tokens beyond the source's (default the run's)")
    group = parser.add_argument_group("place")
    group.add_argument("--host", default="127.0.0.1", help="address; 0.0.0.0 for all of them (default %(default)s)")
    group.add_argument(
        "--port", type=non_negative_int, default=8000, help="0 for any that is free (default %(default)s)"
    )
    group = parser.add_argument_group("batches")
    group.add_argument(
        "--batch_tokens", type=positive_int, default=4096,
        help="most tokens of texts that are translated together, padding included (default %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--wait_ms", type=non_negative_float, default=5.0,
        help="milliseconds that a text may wait for others, where the model is idle (default 5)",
    )  # fmt: skip
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--max_waiting", type=positive_int, default=1024, help="texts that wait; more: 503 (default 1024)"
    )
    group.add_argument("--max_texts", type=positive_int, default=64, help="texts or lines of a request (default 64)")
    group.add_argument("--max_characters", type=positive_int, default=5000, help="of a text (default 5000)")
    group.add_argument("--max_bytes", type=positive_int, default=1 << 20, help="of a request's body (default 1048576)")
    group.add_argument(
        "--timeout", type=positive_int, default=30,
        help="seconds from a request's head to its answer, and for those at work when the server ends (default 30)",
    )  # fmt: skip
    flags = parser.parse_args(arguments)
    if flags.port > 65535:
        parser.error(f"--port={flags.port}: ports go up to 65535")
    if flags.max_texts > flags.max_waiting:
        parser.error(f"--max_texts={flags.max_texts} is more than may wait, --max_waiting={flags.max_waiting}")
    return flags


def _room_for(connections):
    """How many of so many connections this process may have: the limit of open files is raised as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else max(min(connections, soft - OTHER_FILES), 1)


def _bound(host, port):
    """A socket that is bound, and refuses connections until it listens.

    Raises:
        UserError: The address is wrong, or taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or error
        raise UserError(f"--host={host} --port={port}: {said}; choose another") from None
    return listener


if __name__ == "__main__":
    run_command(main)
