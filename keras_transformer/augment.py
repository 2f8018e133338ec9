"""python -m keras_transformer.augment: translate monolingual text into additional training pairs."""

from keras_transformer.cli.arguments import (
    Parser,
    add_decoding_flags,
    add_precision_flag,
    add_run_flags,
    add_sampling_flags,
    positive_int,
    run_command,
    sampling_arguments,
    shard,
    user_path,
)
from keras_transformer.cli.output import report
from keras_transformer.decoding.augmentation import AugmentOptions, augment
from keras_transformer.decoding.engines import add_engine_flag
from keras_transformer.decoding.search_options import Sampling, SearchOptions
from keras_transformer.utils.logs import terminal_log


def main(arguments):
    """Run the command with a list of arguments."""
    parser = Parser(
        "augment",
        "--run=runs/multi30k_deen-tiny --input=mono.de.gz --as=back --output=back.tsv",
        "Translate monolingual text into additional training pairs for the problem parallel_text. Rerun an interrupted "
        "command to continue.",
    )
    add_run_flags(parser)
    parser.add_argument(
        "--input", type=user_path, required=True, help="text file with one sentence per line, plain or compressed"
    )
    parser.add_argument(
        "--as", dest="direction", required=True, choices=("back", "forward"),
        help="use of the input in the pairs: as targets (back) or as sources (forward)",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=user_path, required=True, help=".tsv file of the pairs, with source and target columns"
    )
    parser.add_argument("--tag", help="text in front of each source, such as '<bt>' (default none)")
    parser.add_argument("--to", metavar="LANGUAGE", help="target language of a multilingual run")
    parser.add_argument(
        "--drop_duplicates", default="on", choices=("on", "off"), help="skip repeated lines of --input (default on)"
    )
    parser.add_argument(
        "--shard", type=shard, default=(1, 1), metavar="I/N", help="translate only the I-th of N parts of --input"
    )
    parser.add_argument("--nbest", type=positive_int, default=1, help="maximum number of pairs per line (default 1)")
    add_precision_flag(parser)
    parser.add_argument("--jit_compile", action="store_true", help="compile with XLA (always on with JAX)")
    add_engine_flag(parser)
    add_decoding_flags(parser.add_argument_group("search"))
    add_sampling_flags(parser)
    flags = parser.parse_args(arguments)
    sampling = sampling_arguments(parser, flags)
    search = SearchOptions(
        flags.beam_size, flags.alpha, flags.nbest, flags.extra_length,
        sampling=None if sampling is None else Sampling(**sampling),
    )  # fmt: skip
    options = AugmentOptions(
        direction=flags.direction,
        tag=flags.tag or "",
        to=flags.to,
        drop_duplicates=flags.drop_duplicates == "on",
        shard=flags.shard,
        search=search,
    )
    with terminal_log():
        result = augment(
            flags.run, flags.input, flags.output, options, flags.checkpoint, flags.precision, flags.jit_compile,
            flags.engine,
        )  # fmt: skip
    report(
        f"wrote {result.pairs:,} pairs from {result.lines:,} lines to {flags.output}; skipped {result.blank:,} blank, "
        f"{result.repeated:,} repeated and {result.rejected:,} too long or untranslatable lines"
    )


if __name__ == "__main__":
    run_command(main)
