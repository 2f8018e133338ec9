"""python -m keras_transformer.serve: serve a trained model over HTTP."""

import signal
import socket

from keras_transformer.cli.arguments import (
    Parser,
    add_decoding_flags,
    add_precision_flag,
    add_repetition_flags,
    add_run_flags,
    add_sentences_flag,
    non_negative_float,
    non_negative_int,
    positive_int,
    run_command,
    source_language,
    user_path,
)
from keras_transformer.cli.output import report
from keras_transformer.decoding.engines import add_engine_flag
from keras_transformer.decoding.sentences import split_texts
from keras_transformer.utils.errors import UserError

CONNECTIONS = 900
"""Maximum number of connections, below the usual limit of 1,024 open files."""
PACKAGES = "fastapi fastapi-offline prometheus-client uvicorn"
"""Packages without which the server does not start. The extra `server` adds packages that make it faster."""


def main(arguments):
    """Run the command with a list of arguments."""
    flags = _parse(arguments)
    try:
        import uvicorn

        from keras_transformer.server.application import application
        from keras_transformer.server.limits import Limits
    except ImportError as error:
        raise UserError(f"serve needs {error.name}, which is not installed. Run pip install {PACKAGES}.") from None
    from keras_transformer.server.engines import load_engine

    if flags.split_sentences:
        split_texts([], flags.split_sentences)  # report a missing package before loading the model
    with _bind(flags.host, flags.port) as listener:  # if the port is in use, fail before loading the model
        engine = load_engine(
            flags.run, checkpoint=flags.checkpoint, ensemble=flags.ensemble, precision=flags.precision,
            jit_compile={"on": True, "off": False}.get(flags.jit_compile, "auto"), engine=flags.engine,
            beam_size=flags.beam_size, alpha=flags.alpha, extra_length=flags.extra_length,
            no_repeat_ngram=flags.no_repeat_ngram, repetition_penalty=flags.repetition_penalty,
        )  # fmt: skip
        if flags.split_sentences and engine.trees:
            raise UserError(f"--split_sentences needs a translation model, but {flags.run} is a parser. Omit the flag.")
        language = source_language(flags, engine) if flags.split_sentences else None
        engine.warm_up()
        limits = Limits(flags.max_texts, flags.max_characters, flags.max_bytes, flags.max_waiting, flags.timeout)
        config = uvicorn.Config(
            application(engine, limits, flags.batch_tokens, flags.wait_ms / 1000, language), lifespan="on", ws="none",
            log_config=None, log_level="warning", access_log=False, server_header=False,
            limit_concurrency=CONNECTIONS, timeout_keep_alive=30, timeout_graceful_shutdown=flags.timeout,
        )  # fmt: skip
        host, port = listener.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

        class Server(uvicorn.Server):
            async def startup(self, sockets=None):
                await super().startup(sockets)
                if self.started:
                    report(f"serving {flags.run} with {engine.name} at {url} (API: {url}/docs). Press Ctrl-C to stop.")

        try:
            Server(config).run(sockets=[listener])
        except OSError as error:  # another process began to listen on the port while the model was loading
            raise UserError(f"cannot listen on --port={port}: {error.strerror}. Choose another port.") from None
        except KeyboardInterrupt:
            # Let the signal end the process. A regular exit would crash if a thread returned from JAX during shutdown.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)


def _parse(arguments):
    parser = Parser(
        "serve",
        "--run=runs/toy_ende-toy",
        "Serve a model over HTTP, with a JSON interface and a web page at /. Needs the extra [server].",
    )
    add_run_flags(parser)
    parser.add_argument(
        "--ensemble", type=user_path, action="append", default=[], metavar="RUN",
        help="another run with the same vocabulary, as in translate (repeatable)",
    )  # fmt: skip
    add_engine_flag(parser, default="auto")
    add_precision_flag(parser, default=None)
    parser.add_argument(
        "--jit_compile", default="auto", choices=("auto", "on", "off"),
        help="compile with XLA, where auto compiles only single sentences (default auto)",
    )  # fmt: skip
    add_decoding_flags(parser, "beams per sentence, and maximum number of translations per text")
    add_repetition_flags(parser)
    add_sentences_flag(parser)
    group = parser.add_argument_group("address")
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on, 0.0.0.0 for all (default %(default)s)"
    )
    group.add_argument(
        "--port", type=non_negative_int, default=8000, help="port, 0 for any free port (default %(default)s)"
    )
    group = parser.add_argument_group("batches")
    group.add_argument(
        "--batch_tokens", type=positive_int, default=4096,
        help="maximum number of tokens in a batch, padding included (default %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--wait_ms", type=non_negative_float, default=5.0,
        help="maximum time in ms that a text waits for other texts, if the previous batch had several texts "
        "(default 5)",
    )  # fmt: skip
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--max_waiting", type=positive_int, default=1024, help="maximum number of waiting texts (default 1024)"
    )
    group.add_argument(
        "--max_texts", type=positive_int, default=64, help="maximum number of texts or lines per request (default 64)"
    )
    group.add_argument(
        "--max_characters", type=positive_int, default=5000, help="maximum number of characters per text (default 5000)"
    )
    group.add_argument(
        "--max_bytes", type=positive_int, default=1 << 20, help="maximum size of a request in bytes (default 1048576)"
    )
    group.add_argument(
        "--timeout", type=positive_int, default=30,
        help="time limit in seconds for a request, and for pending requests at shutdown (default 30)",
    )  # fmt: skip
    flags = parser.parse_args(arguments)
    if flags.port > 65535:
        parser.error(f"--port must be from 0 to 65535, got {flags.port}")
    if flags.max_texts > flags.max_waiting:
        parser.error(f"--max_texts must be at most --max_waiting={flags.max_waiting}, got {flags.max_texts}")
    return flags


def _bind(host, port):
    """Return a bound socket that does not listen yet.

    Raises:
        UserError: The address is invalid or in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot bind --host={host} --port={port}: {reason}. Choose another host or port.") from None
    return listener


if __name__ == "__main__":
    run_command(main)
