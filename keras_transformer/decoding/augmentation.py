"""Synthetic training pairs from monolingual text: back-translation, and forward translation for distillation."""

import array
import bisect
import dataclasses
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Literal

import numpy as np

from keras_transformer.data.corpus import check_rereadable, in_chunks, one_line, read_lines
from keras_transformer.data.pair_sources import hash_text
from keras_transformer.data.placeholders import show_spans
from keras_transformer.decoding.engines import choose_engine
from keras_transformer.decoding.loading import load_translator
from keras_transformer.decoding.search_options import SearchOptions
from keras_transformer.runs.run import Run
from keras_transformer.utils.errors import UserError, texts_named
from keras_transformer.utils.files import atomic_open, check_output, read_json, work_directory, write_json
from keras_transformer.utils.progress import progress_bar

logger = logging.getLogger(__name__)

CHUNK = 1024
"""Number of lines per saved chunk. After an interruption, the next call repeats at most one chunk."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AugmentOptions:
    """Options of `augment`.

    Attributes:
        direction: "back" to use the input lines as targets of the pairs, "forward" to use them as sources.
        tag: Text to add before each source, such as "<bt>" (default: no text).
        to: Target language of the translations, for a multilingual run.
        drop_duplicates: Whether to translate repeated input lines only once.
        shard: (I, N) to translate part I of N parts of the input. Equal lines belong to the same part.
        search: `SearchOptions`. With sampling, the default beam size is `nbest`, so the output contains all samples.
    """

    direction: Literal["back", "forward"]
    tag: str = ""
    to: str | None = None
    drop_duplicates: bool = True
    shard: tuple[int, int] = (1, 1)
    search: SearchOptions = SearchOptions()


@dataclasses.dataclass
class AugmentResult:
    """Counts returned by `augment`.

    Attributes:
        lines: Number of input lines in the shard.
        blank: Number of blank lines in the shard.
        repeated: Number of repeated lines that `drop_duplicates` skips.
        rejected: Number of lines that yield no pair, because the line is too long or its translation is empty.
        pairs: Number of pairs in the output.
    """

    lines: int = 0
    blank: int = 0
    repeated: int = 0
    rejected: int = 0
    pairs: int = 0


def augment(
    run_dir, input_path, output_path, options, checkpoint=None, precision="float32", jit_compile=False, engine="keras"
):
    """Translate monolingual text and write the resulting pairs as tab-separated values.

    The function stores finished chunks in a hidden directory next to the output until all chunks are finished. If a
    call is interrupted, the next call with the same run, input and options resumes after the last finished chunk.

    Args:
        run_dir: Run directory of a model whose source language is the language of the input.
        input_path: Text file with one sentence per line, plain or compressed.
        output_path: File to write. Its name must end in .tsv.
        options: `AugmentOptions`.
        checkpoint: "best", "last", "averaged", "ema" or a step (default: the best, or the last if there is no
            best).
        precision: "float32" or "bfloat16".
        jit_compile: Whether TensorFlow compiles the search with XLA.
        engine: See `choose_engine`. With CTranslate2, the samples for a line also depend on the other lines.

    Returns:
        `AugmentResult`.

    Raises:
        UserError: The run, checkpoint or input is missing or invalid, the input is not a regular file, the run is a
            parser, the output is not writable, or its name does not end in .tsv. The tag contains a tab or line
            break. The engine does not support the run or an argument.
    """
    if not str(output_path).endswith(".tsv"):
        raise UserError(f"the output file name must end in .tsv, got {output_path}")
    if options.tag != _plain(options.tag):
        raise UserError(f"--tag must be a single line without tabs and surrounding spaces, got {options.tag!r}")
    check_output("--output", output_path, input=input_path)
    check_rereadable("--input", input_path)
    run = Run.open(run_dir)
    if run.tokenizer.constraint:
        raise UserError(f"augmentation needs a translation model, but {run.path} is a parser. Choose another run.")
    engine = choose_engine(engine, [run], checkpoint, precision, jit_compile, options.search)
    result = AugmentResult()
    repeated = _count(input_path, options, result)  # also detects damaged input early
    total = result.lines - result.blank - result.repeated
    identity = _identity(run, checkpoint, precision, engine, input_path, options)
    with work_directory(f"{output_path}.chunks", identity) as work:
        paths = [work.folder / f"{index:06d}.json" for index in range(-(-total // CHUNK))]
        finished = sum(path.exists() for path in paths)
        work.keep = finished > 0
        if finished:
            logger.info(f"resuming: {min(finished * CHUNK, total):,} of {total:,} lines are already translated")
        translate = None
        with progress_bar("translating", total, min(finished * CHUNK, total), unit="lines") as advance:
            for index, lines in enumerate(in_chunks(_lines(input_path, options, repeated), CHUNK)):
                if not paths[index].exists():
                    translate = translate or _translation(run, checkpoint, precision, jit_compile, engine, options)
                    numbers, texts = zip(*lines)
                    with texts_named([f"{input_path}:{number}" for number in numbers]):
                        write_json(paths[index], translate(texts))
                    work.keep = True
                advance(index * CHUNK + len(lines))
        _join(paths, output_path, result)
        work.keep = False
    return result


def _shard_lines(path, options):
    """Yield (line number, line, hash) for the lines of the shard."""
    part, parts = options.shard
    for number, line in enumerate(read_lines(path), start=1):
        line = _plain(line)
        hashed = hash_text(line)
        if hashed % parts == part - 1:
            yield number, line, hashed


def _count(path, options, result):
    """Count the lines of the shard in an `AugmentResult`, and return the hashes of lines that occur several times.

    The hashes are a sorted array, which is empty if `augment` translates repeated lines again. The function needs about
    10 bytes per line, and more only for repeated lines.
    """
    hashes = array.array("Q")
    for _, line, hashed in _shard_lines(path, options):
        result.lines += 1
        if not line:
            result.blank += 1
        elif options.drop_duplicates:
            hashes.append(hashed)
    values = np.frombuffer(hashes, np.uint64)
    values.sort()
    again = values[1:][values[1:] == values[:-1]]
    result.repeated = len(again)
    return array.array("Q", np.unique(again).tobytes())


def _lines(path, options, repeated):
    """Yield (line number, line) for the lines that `augment` must translate.

    Args:
        path: Input file.
        options: `AugmentOptions`.
        repeated: Result of `_count`.
    """
    seen = bytearray(len(repeated))
    for number, line, hashed in _shard_lines(path, options):
        if not line:
            continue
        place = bisect.bisect_left(repeated, hashed)
        if place < len(repeated) and repeated[place] == hashed:
            if seen[place]:
                continue
            seen[place] = True
        yield number, line


def _translation(run, checkpoint, precision, jit_compile, engine, options):
    """Return a function that translates lines and returns {"pairs": [[source, target], …], "rejected": count}."""
    translator = load_translator([run], checkpoint, precision, jit_compile, engine=engine)
    search = options.search
    if search.sampling and search.beam_size is None:
        search = dataclasses.replace(search, beam_size=search.nbest)
    search = dataclasses.replace(search, max_source_length=search.max_source_length or run.hparams.max_length)

    def translate(lines):
        too_long, pairs, rejected = set(), [], 0
        translations = translator.translate(
            lines, **vars(search), to=options.to, cut=lambda row, tokens: too_long.add(row)
        )
        for row, (line, hypotheses) in enumerate(zip(lines, translations)):
            line = _without_marks(line.removeprefix(translator.tokenizer.source_prefix(line)), translator)
            rejects = row in too_long or not line
            outputs = [] if rejects else [_plain(hypothesis.text) for hypothesis in hypotheses]
            outputs = list(dict.fromkeys(filter(None, outputs)))
            rejected += not outputs
            for output in outputs:
                source, target = (output, line) if options.direction == "back" else (line, output)
                pairs.append([f"{options.tag} {source}".strip(), target])
        return {"pairs": pairs, "rejected": rejected}

    return translate


def _without_marks(line, translator):
    """Return a line without the marks of protected spans, which training text must not contain."""
    if not translator.tokenizer.placeholders:
        return line
    (hidden,), (spans,) = translator.hide_spans([line])
    return _plain(show_spans(hidden, spans))


def _plain(text):
    """Return a text on one line, with tabs replaced by spaces."""
    return one_line(text).replace("\t", " ").strip()


def _join(paths, output_path, result):
    """Write the pairs of all chunks to the output and add their counts to the result."""
    with atomic_open(output_path) as output:
        for path in paths:
            chunk = read_json(path, f"remove {path.parent} to start again", rejected=int, pairs=list)
            result.pairs += len(chunk["pairs"])
            result.rejected += chunk["rejected"]
            output.writelines(f"{source}\t{target}\n" for source, target in chunk["pairs"])


def _identity(run, checkpoint, precision, engine, input_path, options):
    """Return a hash of everything that affects the pairs."""
    _, state = run.checkpoints.load(checkpoint, parts=("weights",))
    status = os.stat(input_path)
    content = {
        "run": run.config_hash, "checkpoint": str(checkpoint), "weights": state["sha256"], "precision": precision,
        "engine": engine, "input": [str(Path(input_path).resolve()), status.st_size, status.st_mtime_ns],
        "options": dataclasses.asdict(options),
    }  # fmt: skip
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
