"""python -m keras_transformer.cost: estimate the operations and the duration of a training run (Table 2)."""

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import Parser, non_negative_float, positive_int, run_command
from keras_transformer.cli.output import report
from keras_transformer.config.hparams import load_hparams
from keras_transformer.training.cost import GPU_TFLOPS, PAPER_GPUS, PAPER_HOURS, paper_flops, training_cost

PAPER_TFLOPS = GPU_TFLOPS["P100"]


def main(arguments):
    """Run the command with a list of arguments."""
    parser = Parser(
        "cost",
        "--hparams=base --gpus=8 --tflops=9.5",
        "Estimate the floating-point operations and the time of a training run, as in Table 2 of the paper.",
    )
    parser.add_argument("--hparams", default="base", help="registered hparams (default %(default)s)")
    parser.add_argument(
        "--train_steps", type=positive_int, help="number of updates (default: train_steps of the hparams)"
    )
    parser.add_argument("--vocab_size", type=positive_int, default=37_000, help="vocabulary size (default %(default)s)")
    parser.add_argument(
        "--length", type=positive_int, default=30, help="tokens per sentence on each side (default %(default)s)"
    )
    parser.add_argument(
        "--hours", type=non_negative_float, help="hours of training (default: as in the paper, if known)"
    )
    parser.add_argument(
        "--gpus", type=positive_int, default=PAPER_GPUS, help="number of devices (default %(default)s, as in the paper)"
    )
    parser.add_argument(
        "--tflops",
        type=non_negative_float,
        default=PAPER_TFLOPS,
        help="sustained TFLOP/s of a device (default %(default)s, a P100)",
    )
    flags = parser.parse_args(arguments)
    for name in ("hours", "tflops"):
        if getattr(flags, name) == 0:
            parser.error(f"--{name} must be greater than 0, got 0")
    changes = {"train_steps": flags.train_steps} if flags.train_steps else {}
    hparams = load_hparams(flags.hparams, **changes)
    if flags.length > hparams.batch_tokens:
        parser.error(f"--length must be at most batch_tokens={hparams.batch_tokens}, got {flags.length}")
    load_keras()
    cost = training_cost(hparams, flags.vocab_size, flags.length)
    hours = flags.hours
    if hours is None and flags.hparams in PAPER_HOURS and (flags.gpus, flags.tflops) == (PAPER_GPUS, PAPER_TFLOPS):
        hours = PAPER_HOURS[flags.hparams] * hparams.train_steps / load_hparams(flags.hparams).train_steps
    report(
        f"{flags.hparams}: {cost.parameters:,} parameters, {cost.updates:,} updates of {hparams.batch_tokens:,} source "
        f"and {hparams.batch_tokens:,} target tokens, {flags.length} per sentence"
    )
    report(f"floating point operations: {cost.counted:.2e} counted")
    devices = f"{flags.gpus} device{'s' * (flags.gpus > 1)} × {flags.tflops:g} TFLOP/s"
    if hours is not None:
        by_paper = paper_flops(hours, flags.gpus, flags.tflops)
        share = cost.counted / by_paper
        report(
            f"  {by_paper:.2e} by the paper's method, {hours:g} hours × {devices}; the count is {share:.0%} of this "
            "estimate"
        )
    report(f"{cost.hours(flags.gpus, flags.tflops):.3g} hours at the full rate of {devices}")


if __name__ == "__main__":
    run_command(main)
