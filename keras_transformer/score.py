"""python -m keras_transformer.score: compute the log-probabilities of given translations, line by line."""

import itertools
import json
import math

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import (
    Parser,
    add_precision_flag,
    add_run_flags,
    alpha,
    positive_int,
    run_command,
    user_path,
)
from keras_transformer.cli.output import open_output, warn
from keras_transformer.data.corpus import in_chunks, read_pairs
from keras_transformer.data.language_tags import tag_texts
from keras_transformer.data.placeholders import hide_in_target
from keras_transformer.metrics.perplexity import perplexity
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError, texts_named
from keras_transformer.utils.files import check_output, finite_or_null

CHUNK = 1024
"""Number of pairs to sort by length, score together, and write in their original order."""


def main(arguments):
    """Run the command with a list of arguments."""
    flags = _parse(arguments)
    chunks = in_chunks(enumerate(read_pairs(flags.source, flags.target), start=1), CHUNK)
    first = next(chunks)  # report a missing file before loading the model
    runs = [Run.open(path) for path in (flags.run, *flags.ensemble)]  # report a wrong directory before loading Keras
    load_keras()
    from keras_transformer.decoding.translator import Translator

    checkpoints = flags.checkpoint.split(",") if flags.checkpoint else None
    translator = Translator.from_runs(runs, checkpoints, flags.precision)
    max_length = flags.max_length or translator.hparams.max_length
    pairs, tokens, log_p = 0, 0, 0.0
    with open_output(flags.output) as output:
        for chunk in itertools.chain([first], chunks):
            lines = []
            for number, source, target, size, hypothesis in _scored(translator, chunk, flags, max_length):
                lines.append(_line(flags, translator, number, source, target, size, hypothesis))
                if hypothesis:
                    pairs, tokens, log_p = pairs + 1, tokens + size, log_p + hypothesis.log_probability
            # A single write, so that a broken pipe or Ctrl-C leaves only complete lines.
            output.write("".join(lines))
            output.flush()
    if tokens:
        nll = -log_p / tokens
        warn(f"{pairs:,} pairs, {tokens:,} tokens: perplexity = {perplexity(nll):.2f} ({nll:.4f} nats per token)")


def _parse(arguments):
    parser = Parser(
        "score",
        "--run=runs/toy_ende-toy --source=lines.en --target=lines.de",
        "Score given translations with teacher forcing. For each pair of lines, write three columns separated by tabs: "
        "the log-probability of the target in nats, its number of tokens including EOS, and the score as in translate "
        "--scores.",
    )
    add_run_flags(parser, ensemble=True)
    parser.add_argument(
        "--source", type=user_path, required=True, help="file of source lines, plain or compressed, or - for stdin"
    )
    parser.add_argument(
        "--target", type=user_path, required=True, help="file of translations, or of trees for a parser, one per line"
    )
    parser.add_argument(
        "--to", metavar="LANGUAGE", help="target language of a multilingual run, for lines without a tag such as <2de>"
    )
    parser.add_argument("--output", type=user_path, default="-", help="file of scores (default stdout)")
    parser.add_argument("--format", choices=("text", "jsonl"), default="text", help="output format (default text)")
    parser.add_argument(
        "--token_scores", action="store_true", help="write the log-probability of each token (requires --format=jsonl)"
    )
    parser.add_argument("--alpha", type=alpha, help="exponent of the length penalty (default: hparams of the run)")
    parser.add_argument(
        "--max_length", type=positive_int,
        help="maximum number of tokens per side, including EOS, beyond which pairs get nan (default: hparams of the "
        "run)",
    )  # fmt: skip
    add_precision_flag(parser)
    flags = parser.parse_args(arguments)
    if flags.token_scores and flags.format != "jsonl":
        parser.error("--token_scores needs --format=jsonl")
    if flags.source == flags.target == "-":
        parser.error("--source and --target cannot both be stdin; use a file for one of them")
    check_output("--output", flags.output, source=flags.source, target=flags.target)
    return flags


def _scored(translator, chunk, flags, max_length):
    """Yield (line number, source, target, number of target tokens, `Hypothesis` or None if the pair is too long)."""
    with texts_named([f"line {number}" for number, _ in chunk]):
        tagged = tag_texts([source for _, (source, _) in chunk], flags.to, translator.tokenizer.tags)
        hidden, spans = translator.hide_spans(tagged)
    rows, sources = [], translator.tokenizer.encode(hidden)
    for (number, (source, target)), ids, of_source in zip(chunk, sources, spans):
        try:
            (labels,) = translator.tokenizer.encode_targets([hide_in_target(target, of_source)])
        except UserError as error:  # not a tree
            raise UserError(f"{flags.target}:{number}: {error}") from None
        sizes = len(ids) + 1, len(labels) + 1
        if max(sizes) > max_length:
            warn(f"line {number} is not scored, because it has {max(sizes):,} tokens (--max_length={max_length})")
        rows.append((number, source, target, labels, sizes))
    kept = [row for row in rows if max(row[-1]) <= max_length]
    with texts_named([f"line {row[0]}" for row in kept]):
        found = iter(translator.score([row[1] for row in kept], [row[3] for row in kept], flags.alpha, flags.to))
    for number, source, target, _, sizes in rows:
        yield number, source, target, sizes[1], next(found) if max(sizes) <= max_length else None


def _line(flags, translator, number, source, target, size, hypothesis):
    """Return the output line of a pair.

    If the pair is too long, `hypothesis` is None. The log-probability and the score in the line are then nan (in text)
    or null (in JSON).
    """
    log_p, score = (hypothesis.log_probability, hypothesis.score) if hypothesis else (math.nan, math.nan)
    if flags.format == "text":
        return f"{log_p:.6f}\t{size}\t{score:.6f}\n"
    entry = {
        "line": number,
        "source": source,
        "target": target,
        "tokens": size,
        "log_probability": log_p,
        "score": score,
    }
    if flags.token_scores and hypothesis:
        entry["pieces"] = translator.tokenizer.pieces(hypothesis.tokens)
        entry["token_log_probabilities"] = [round(float(p), 6) for p in hypothesis.token_log_probabilities]
    return json.dumps(finite_or_null(entry), ensure_ascii=False) + "\n"


if __name__ == "__main__":
    run_command(main)
