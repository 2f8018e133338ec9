"""python -m keras_transformer.train: train a model on a problem, or resume a run."""

from pathlib import Path

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import (
    Parser,
    add_problem_flags,
    non_negative_int,
    number,
    positive_int,
    read_problem_flags,
    run_command,
    user_path,
)
from keras_transformer.distributed.cluster import Coordinator
from keras_transformer.utils.logs import terminal_log


def main(arguments):
    """Run the command with a list of arguments."""
    parser = Parser(
        "train",
        "--problem=multi30k_ende --hparams=tiny --train_steps=8000",
        "Train a model on a problem and store it in a run directory. Rerun the command to resume. By default, the "
        "problem is the built-in toy_ende.",
    )
    add_problem_flags(parser, default_problem="toy_ende", default_hparams="toy")
    parser.add_argument("--output_dir", type=user_path, help="run directory (default runs/PROBLEM-HPARAMS)")
    parser.add_argument(
        "--init_from",
        type=user_path,
        metavar="RUN",
        help="run directory that provides the initial weights, with embeddings matched by token",
    )
    parser.add_argument(
        "--init_checkpoint", help="checkpoint of --init_from: best, last, averaged, ema or a step (default best)"
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="print the summary of the run and stop after preparing the corpus"
    )
    group = parser.add_argument_group("execution (may change when the run resumes)")
    group.add_argument(
        "--strategy",
        default="auto",
        choices=("auto", "one", "mirrored", "multiworker", "jax"),
        help="strategy for several devices (default auto)",
    )
    group.add_argument("--devices", type=positive_int, help="number of devices of this process (default all)")
    group.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0, for several JAX processes")
    group.add_argument("--num_processes", type=positive_int, help="number of processes, with --coordinator")
    group.add_argument("--process_id", type=non_negative_int, help="index of this process from 0, with --coordinator")
    group.add_argument(
        "--worker_patience",
        type=positive_int,
        default=300,
        help="maximum time in seconds to wait for the other processes (default %(default)s)",
    )
    group.add_argument(
        "--precision",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
        help="data type of matrix products (default float32)",
    )
    group.add_argument(
        "--accumulate",
        type=number(int, 1, 1000),
        default=1,
        help="micro-batches per update (default 1)",
    )
    group.add_argument("--remat", action="store_true", help="recompute layers in the backward pass to save memory")
    group.add_argument(
        "--jit_compile",
        default="auto",
        choices=("auto", "on", "off"),
        help="compile updates with XLA, as JAX always does (default auto)",
    )
    flags = parser.parse_args(arguments)
    problem, hparams = read_problem_flags(flags)
    init_from = None
    if flags.init_from:
        init_from = {"run": flags.init_from, "checkpoint": flags.init_checkpoint}
    elif flags.init_checkpoint:
        parser.error(f"--init_checkpoint={flags.init_checkpoint} needs --init_from=RUN")
    coordinator = Coordinator(flags.coordinator, flags.num_processes, flags.process_id)
    load_keras()
    from keras_transformer.training.options import TrainOptions
    from keras_transformer.training.trainer import train_model

    options = TrainOptions(
        strategy="multiworker" if flags.coordinator and flags.strategy in ("auto", "jax") else flags.strategy,
        devices=flags.devices,
        coordinator=coordinator if flags.coordinator else None,
        worker_patience=flags.worker_patience,
        precision=flags.precision,
        accumulate=flags.accumulate,
        remat=flags.remat,
        jit_compile={"auto": "auto", "on": True, "off": False}[flags.jit_compile],
    )
    output_dir = Path(flags.output_dir or f"runs/{flags.problem}-{flags.hparams}")
    with terminal_log():
        train_model(
            problem, hparams, output_dir, options, preset=flags.hparams, init_from=init_from,
            dry_run=flags.dry_run,
        )  # fmt: skip


if __name__ == "__main__":
    run_command(main)
