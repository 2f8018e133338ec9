"""python -m keras_transformer.prepare: learn the vocabulary of a problem and encode its corpus."""

from keras_transformer.cli.arguments import Parser, add_problem_flags, read_problem_flags, run_command, shard
from keras_transformer.cli.output import report_if_read
from keras_transformer.data.corpus import one_line
from keras_transformer.tasks.shards import merge_shards, prepare_shard, shards_dir
from keras_transformer.utils.logs import terminal_log


def main(arguments):
    """Run the command with a list of arguments."""
    parser = Parser(
        "prepare",
        "--problem=multi30k_ende --raw_dir=multi30k",
        "Learn the vocabulary of a problem and encode its corpus. `train` does this automatically if necessary.",
    )
    add_problem_flags(parser, default_problem="toy_ende", default_hparams="toy")
    parser.add_argument(
        "--report", action="store_true", help="print the number of dropped pairs by reason, with examples"
    )
    parser.add_argument("--verify", action="store_true", help="verify all checksums of the prepared corpus")
    parser.add_argument("--shard", type=shard, metavar="I/N", help="prepare only the I-th of N shards")
    parser.add_argument("--merge", action="store_true", help="merge all shards, as the last --shard does automatically")
    flags = parser.parse_args(arguments)
    if flags.shard and (flags.merge or flags.report or flags.verify):
        parser.error("--shard cannot be combined with --merge, --report or --verify")
    problem, _ = read_problem_flags(flags)
    with terminal_log():
        if flags.shard:
            if not prepare_shard(problem, *flags.shard):
                number, count = flags.shard
                report_if_read(f"shard {number} of {count} of {problem.name} is in {shards_dir(problem)}")
                return
        elif flags.merge:
            merge_shards(problem)
        else:
            problem.prepare()
    if flags.verify:
        problem.store.verify()
    if flags.report:
        report_if_read(filter_report(problem.store.manifest))
    verified = ", and all checksums match" if flags.verify else ""
    report_if_read(f"{problem.name} is prepared in {problem.prepared_dir}{verified}")


def filter_report(manifest):
    """Return a text with the number of pairs that the filters dropped from each split, with examples."""
    lines = []
    for split, counts in manifest["splits"].items():
        dropped = {reason: count for reason, count in counts.items() if reason.startswith("dropped_")}
        lines.append(f"{split}: {counts['pairs']:,} pairs kept, {sum(dropped.values()):,} dropped")
        for reason, count in dropped.items():
            lines.append(f"  {count:,} {reason.replace('_', ' ')}")
            for source, target in manifest.get("dropped", {}).get(split, {}).get(reason, []):
                lines.append(f"    {one_line(source)!r} | {one_line(target)!r}")
    return "\n".join(lines)


if __name__ == "__main__":
    run_command(main)
