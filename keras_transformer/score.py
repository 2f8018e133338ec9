"""python -m keras_transformer.score: how probable a model finds given translations, line by line."""

import contextlib
import itertools
import json
import math
import sys

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import Parser, add_run_flags, alpha, positive_int, run_command, user_path
from keras_transformer.data.corpus import in_chunks, read_pairs
from keras_transformer.metrics.perplexity import perplexity
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import check_output, open_partial

CHUNK = 1024
"""Pairs scored together: sorted by length inside, written in order."""


def main(arguments):
    """Runs the command with a list of arguments."""
    flags = _parse(arguments)
    chunks = in_chunks(enumerate(read_pairs(flags.source, flags.target), start=1), CHUNK)
    first = next(chunks)  # a missing file is said before the model is loaded
    for path in (flags.run, *flags.ensemble):
        Run.open(path)  # a wrong directory is said before Keras is loaded
    load_keras()
    from keras_transformer.decoding.translator import Translator

    checkpoints = flags.checkpoint.split(",") if flags.checkpoint else None
    translator = Translator.load([flags.run, *flags.ensemble], checkpoints, flags.precision)
    most = flags.max_length or translator.hparams.max_length
    pairs, tokens, log_p = 0, 0, 0.0
    with open_partial(flags.output) if flags.output != "-" else contextlib.nullcontext(sys.stdout) as output:
        for chunk in itertools.chain([first], chunks):
            lines = []
            for number, source, target, size, hypothesis in _scored(translator, chunk, flags, most):
                lines.append(_line(flags, translator, number, source, target, size, hypothesis))
                if hypothesis:
                    pairs, tokens, log_p = pairs + 1, tokens + size, log_p + hypothesis.log_probability
            # One write, so that a broken pipe or Ctrl-C leaves whole lines.
            output.write("".join(lines))
            output.flush()
    if tokens:
        nll = -log_p / tokens
        _say(f"{pairs:,} pairs, {tokens:,} tokens: perplexity = {perplexity(nll):.2f} ({nll:.4f} nats a token)")


def _parse(arguments):
    parser = Parser(
        "score",
        "--run=runs/toy_ende-toy --source=lines.en --target=lines.de",
        "Scores given translations, teacher-forced: for each pair of lines the target's log-probability in nats, its "
        "tokens, EOS counted, and its score as translate --scores has it, with tabs between them.",
    )
    add_run_flags(parser, ensemble=True)
    parser.add_argument(
        "--source", type=user_path, required=True, help="file of source lines, plain or .gz; - is stdin"
    )
    parser.add_argument(
        "--target", type=user_path, required=True, help="file of their translations; of a parser trees, one a line"
    )
    parser.add_argument("--output", type=user_path, default="-", help="file of scores (default stdout)")
    parser.add_argument("--format", choices=("text", "jsonl"), default="text", help="(default text)")
    parser.add_argument("--token_scores", action="store_true", help="with the log-probability of each token, in jsonl")
    parser.add_argument("--alpha", type=alpha, help="exponent of the length penalty (default the run's)")
    parser.add_argument(
        "--max_length", type=positive_int,
        help="pairs of which a side has more tokens, EOS counted, are told and get nan (default the run's)",
    )  # fmt: skip
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="(default float32)")
    flags = parser.parse_args(arguments)
    if flags.token_scores and flags.format != "jsonl":
        parser.error("--token_scores needs --format=jsonl")
    if flags.source == flags.target == "-":
        parser.error("--source and --target cannot both be stdin; give the file of one of them")
    check_output("--output", flags.output, source=flags.source, target=flags.target)
    return flags


def _scored(translator, chunk, flags, most):
    """Yields (line, source, target, tokens of the target, `Hypothesis` or None of a pair that is too long)."""
    rows, sources = [], translator.tokenizer.encode([source for _, (source, _) in chunk])
    for (number, (source, target)), ids in zip(chunk, sources):
        try:
            (labels,) = translator.tokenizer.encode_targets([target])
        except UserError as error:  # no tree
            raise UserError(f"{flags.target}:{number}: {error}") from None
        sizes = len(ids) + 1, len(labels) + 1
        if max(sizes) > most:
            _say(f"line {number}: its {max(sizes):,} tokens are more than the {most:,} that are scored")
        rows.append((number, source, target, labels, sizes))
    kept = [row for row in rows if max(row[-1]) <= most]
    found = iter(translator.score([row[1] for row in kept], [row[3] for row in kept], flags.alpha))
    for number, source, target, _, sizes in rows:
        yield number, source, target, sizes[1], next(found) if max(sizes) <= most else None


def _line(flags, translator, number, source, target, size, hypothesis):
    """The line of a pair; `hypothesis` is None if it is too long."""
    figures = (hypothesis.log_probability, hypothesis.score) if hypothesis else (math.nan, math.nan)
    if flags.format == "text":
        return f"{figures[0]:.6f}\t{size}\t{figures[1]:.6f}\n"
    log_p, score = figures if hypothesis else (None, None)  # JSON knows no NaN
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
    return json.dumps(entry, ensure_ascii=False) + "\n"


def _say(line):
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_command(main)
