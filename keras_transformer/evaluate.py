"""python -m keras_transformer.evaluate: decode and score a split, or score parse trees as EVALB does."""

import collections
import json
import tempfile
from pathlib import Path

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import (
    Parser,
    add_decoding_flags,
    add_grammar_flag,
    add_repetition_flags,
    add_run_flags,
    decoding_arguments,
    non_negative_int,
    run_command,
    user_path,
)
from keras_transformer.cli.output import report, warn
from keras_transformer.data.corpus import one_line, read_lines
from keras_transformer.decoding.engines import add_engine_flag
from keras_transformer.parsing.parseval import F1_OF_ALL
from keras_transformer.runs.provenance import append_row, command, git_revision
from keras_transformer.runs.run import Run
from keras_transformer.tasks.parts import in_directions
from keras_transformer.utils.files import atomic_open, cannot_write, check_output
from keras_transformer.utils.machine import describe_machine

RUN_FLAGS = ("checkpoint", "split", "engine", "beam_size", "alpha", "extra_length", "no_repeat_ngram",
             "repetition_penalty", "unconstrained", "output_dir", "samples", "paper_bleu", "directions")  # fmt: skip
"""Flags that need `--run`."""


def main(arguments):
    """Run the command with a list of arguments."""
    parser = Parser(
        "evaluate", "--run=runs/toy_ende-toy --split=test", "Decode a split of the run's problem and score the outputs."
    )
    add_run_flags(parser, required=False)
    add_decoding_flags(parser)
    add_repetition_flags(parser)
    add_grammar_flag(parser)
    parser.add_argument(
        "--split", type=lambda text: text.split(","), default=["test"], metavar="SPLIT",
        help="split to evaluate, or several separated by commas, such as test,test_2017,test_coco (default test)",
    )  # fmt: skip
    parser.add_argument(
        "--directions",
        help="directions of a multilingual run, such as de-fr,fr-de (default: all directions of the run)",
    )
    parser.add_argument("--output_dir", type=user_path, help="folder for the outputs and references (default none)")
    add_engine_flag(parser)
    parser.add_argument("--samples", type=non_negative_int, default=0, help="number of examples to print (default 0)")
    parser.add_argument("--by_length", action="store_true", help="print a table of results by sentence length")
    parser.add_argument(
        "--compare", type=user_path, metavar="FILE",
        help="another system's outputs (or trees) for the same sentences, plain or compressed, to compare by paired "
        "bootstrap",
    )  # fmt: skip
    parser.add_argument(
        "--paper_bleu", action="store_true",
        help="also print BLEU as in the paper (Moses tokens, split compounds), not comparable with sacreBLEU",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print only JSON, with all results")
    parser.add_argument("--results", type=user_path, help="JSON lines file to which a row of scores is appended")
    group = parser.add_argument_group("parse trees in files, instead of --run")
    group.add_argument("--gold", type=user_path, metavar="FILE", help="gold trees, one sentence per line (- for stdin)")
    group.add_argument(
        "--test", type=user_path, metavar="FILE", help="trees to score, in the same format and order as the gold trees"
    )
    group.add_argument(
        "--evalb_params", type=user_path, metavar="FILE", help="EVALB parameter file (default: rules of COLLINS.prm)"
    )
    group.add_argument("--by_label", action="store_true", help="print a table of results by bracket label")
    flags = parser.parse_args(arguments)
    if flags.results:
        inputs = ("compare", "gold", "test", "evalb_params")
        check_output("--results", flags.results, **{name: getattr(flags, name) for name in inputs})
    if flags.gold or flags.test or flags.evalb_params:
        if flags.run or not (flags.gold and flags.test):
            parser.error("to score trees in files, use both --gold=FILE and --test=FILE, without --run")
        for name in RUN_FLAGS:
            if getattr(flags, name) != parser.get_default(name):
                parser.error(f"--{name} requires --run and cannot be combined with --gold and --test")
        if [flags.gold, flags.test, flags.compare, flags.evalb_params].count("-") > 1:
            parser.error("only one of --gold, --test, --compare and --evalb_params can be stdin")
        return evaluate_trees(flags)
    if not flags.run:
        parser.error("the following arguments are required: --run, or --gold and --test")
    if flags.by_label:
        parser.error("--by_label needs --gold and --test; to get the trees of a run as files, use --output_dir")
    if flags.compare and len(flags.split) > 1:
        parser.error("--compare can be used with only one split")
    for split in flags.split if flags.output_dir else ():
        for name in ("sources", "outputs", "references", "table"):
            place = Path(flags.output_dir) / f"{split}.{name}.txt"
            check_output("a file of --output_dir", place, compare=flags.compare)
    run = Run.open(flags.run)  # report a wrong directory or split before loading Keras
    problem = in_directions(run, flags.directions)
    for split in flags.split:
        problem.check_split(split)
    check_writable(flags.results, flags.output_dir)
    load_keras()
    from keras_transformer.decoding.evaluation import evaluate
    from keras_transformer.decoding.evaluation_records import append_result, summary
    from keras_transformer.decoding.search_options import SearchOptions

    options, summaries = SearchOptions(**decoding_arguments(flags)), []
    for split in flags.split:
        result = evaluate(
            flags.run, flags.checkpoint, split, options, flags.compare, flags.paper_bleu, flags.engine,
            flags.directions,
        )  # fmt: skip
        if flags.output_dir:
            write_texts(result, Path(flags.output_dir))
        if flags.results:
            append_result(flags.results, result)
        if flags.json:
            summaries.append(summary(result, flags.samples))
        else:
            report_text(result, flags.samples, flags.by_length)
    if flags.json:
        report(json.dumps(summaries if summaries[1:] else summaries[0], indent=2, ensure_ascii=False))


def check_writable(results, output_dir):
    """Create the folder of the file `results` and the folder `output_dir`, unless they are None.

    Raises:
        UserError: The file or one of the folders is not writable.
    """
    try:
        if path := results:
            file = Path(path).resolve()
            if file.exists():
                open(file, "ab+").close()
            else:
                _create_folder(file.parent)
        if path := output_dir:
            _create_folder(path)
    except OSError as error:
        raise cannot_write(path, error) from None


def _create_folder(path):
    """Create a folder, unless it exists, and raise an `OSError` if it is not writable."""
    Path(path).mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path).close()


def write_texts(result, folder):
    """Write the sources, outputs, references and table (if any) of an `Evaluation` to files in a folder."""
    for name in ("sources", "outputs", "references"):
        with atomic_open(folder / f"{result.split}.{name}.txt") as file:
            file.writelines(one_line(text) + "\n" for text in getattr(result, name))
    if result.table:
        with atomic_open(folder / f"{result.split}.table.txt") as file:
            file.write(result.table)


def evaluate_trees(flags):
    """Score the trees of `--test` against the gold trees of `--gold`, and print EVALB's table.

    `--compare` adds a comparison with other trees. Errors in individual sentences go to stderr.
    """
    from keras_transformer.parsing.evalb_parameters import Parameters, read_parameters
    from keras_transformer.parsing.parseval import RULES, compare_f1, parseval

    parameters, comparison = Parameters(), None
    if flags.evalb_params:
        parameters = read_parameters(read_lines(flags.evalb_params, may_be_empty=True), flags.evalb_params)
    golds = list(read_lines(flags.gold))

    def score(path):
        result = parseval(golds, read_lines(path, may_be_empty=True), parameters, flags.gold, path)
        for sentence in result.sentences:
            if sentence.message:
                warn(f"{path}: sentence {sentence.number}: {sentence.message}")
        return result

    result = score(flags.test)
    if flags.compare:
        rules = f"EVALB's rules, {flags.evalb_params}" if flags.evalb_params else RULES
        comparison = compare_f1(result, score(flags.compare), rules)
    row = {
        "benchmark": "trees", "gold": flags.gold, "test": flags.test,
        "parameters": flags.evalb_params or "COLLINS.prm", **result.figures(),
    }  # fmt: skip
    if flags.by_length:
        row["by_length"] = {words: part.figures() for words, part in result.by_length().items()}
    if flags.by_label:
        row["by_label"] = {one.label: one.figures() for one in result.by_label()}
    if comparison:
        row["comparison"] = {"file": flags.compare, **comparison.figures()}
    if flags.results:
        append_row(
            flags.results, {**row, "command": command(), "commit": git_revision(), "machine": describe_machine()}
        )
    if flags.json:
        report(json.dumps(row, indent=2, ensure_ascii=False))
    else:
        report_trees(result, flags.by_length, flags.by_label)
        if comparison:
            report_comparison(comparison, flags.test, flags.compare)


def report_trees(result, by_length, by_label):
    """Print EVALB's table of a `Parseval`, optionally with tables by sentence length and by label."""
    report(result.table().rstrip("\n"))
    report(f"{F1_OF_ALL:25} = {result.f1_of_all_sentences:6.2f} ({result.left_out()})")
    scores = ("recall", "precision", "F1")
    if by_length:
        rows = (
            (words, len(one.sentences), one.errors, one.recall, one.precision, one.f1, one.complete_match,
             one.tagging_accuracy, one.f1_of_all_sentences)
            for words, one in result.by_length().items()
        )  # fmt: skip
        heads = ("words", "sentences", "errors", *scores, "exact", "tags", F1_OF_ALL.removesuffix(" sentences"))
        report_table(heads, *map(_cells, rows))
    if by_label:
        rows = ((one.label, one.gold, one.test, one.recall, one.precision, one.f1) for one in result.by_label())
        report_table(("label", "gold", "test", *scores), *map(_cells, rows))


def _cells(row):
    return [
        f"{cell:.2f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell for cell in row
    ]


def report_text(result, samples, by_length):
    """Print an `Evaluation` as text, with the main score on the last line.

    Args:
        result: The `Evaluation`.
        samples: Number of examples to print.
        by_length: Whether to print the table by source length.
    """
    for source, output, reference in result.examples()[:samples]:
        report(f"source:    {source}\noutput:    {output}\nreference: {reference}\n")
    report(f"{len(result.outputs):,} lines of {result.split} in {result.seconds:.1f} s")
    if by_length:
        report_table(
            ("words", "lines", result.scores[-1].name, "perplexity", "length ratio"),
            *(
                (row["words"], f"{row['lines']:,}", f"{row['score']:.2f}", f"{row['perplexity']:.2f}",
                 "–" if row["length_ratio"] is None else f"{row['length_ratio']:.3f}")
                for row in result.by_length()
            ),
        )  # fmt: skip
    several = len(result.part_scores) > 1
    if several:
        report_directions(result)
    if result.comparison:
        report_comparison(result.comparison, "this run", result.compared_with)
    if result.table:
        report("\n" + result.table[max(0, result.table.rfind("=== ")) :])
    if by_length or result.comparison or several:
        report("")
    report(f"perplexity = {result.perplexity:.2f} ({result.nll():.4f} nats per token of the references)")
    for score in result.scores:
        report(f"signature of {score.name}: {score.signature}")
        report(str(score))


def report_directions(result):
    """Print a table with the scores of each direction and their means."""
    lines = {**collections.Counter(result.part_names), "mean": len(result.outputs)}
    rows = {**result.part_scores, "mean": result.scores}.items()
    heads = ("direction", "lines", *(score.name for score in result.scores))
    report_table(heads, *((name, *_cells((lines[name], *(score.value for score in scores)))) for name, scores in rows))


def report_comparison(comparison, name, other_name):
    """Print a `Comparison` of two systems."""
    systems = ((name, comparison.system), (other_name, comparison.other))
    report_table(
        ("system", comparison.metric, "mean ± 95% interval"),
        *((name, f"{one.score:.2f}", f"{one.mean:.2f} ± {one.interval:.2f}") for name, one in systems),
    )
    report(f"difference = {comparison.difference:+.2f}, p = {comparison.p_value:.4f} by paired bootstrap")
    report(comparison.signature)


def report_table(*rows):
    """Print rows of texts as right-aligned columns after a blank line."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows)
    report("\n" + "\n".join(lines))


if __name__ == "__main__":
    run_command(main)
