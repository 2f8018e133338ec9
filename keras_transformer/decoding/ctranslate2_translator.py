"""Translation with CTranslate2 on the CPU. This module does not import Keras."""

import collections
import functools
import math
from pathlib import Path

import numpy as np

from keras_transformer.config.hparams import HParams
from keras_transformer.conversion.cache import converted_files
from keras_transformer.conversion.ctranslate2 import POSITIONS
from keras_transformer.data.tokenizers.base import EOS
from keras_transformer.data.tokenizers.loading import load_tokenizer
from keras_transformer.decoding.base_translator import BaseTranslator, Hypothesis, score_of
from keras_transformer.utils.errors import NonFiniteOutputs, TextError, UserError, errors_of, optional_import
from keras_transformer.utils.machine import usable_cores

BATCH_ROWS = 32
LIMIT_STEP = 16
"""Length limits are rounded up to a multiple of this value, so that more sentences can share a call."""


class CTranslate2Translator(BaseTranslator):
    """Translator that runs the model and the search with CTranslate2.

    Log-probabilities and scores have the same definition as in `Translator`. The search differs from that of
    `Translator` in its length penalty and its stopping criterion. It does not support constraints, phrases, repetition
    options or alignments. Samples depend on the seed and on all texts of a call.

    Args:
        read_files: Function that returns the files of the model, {name: bytes}.
        tokenizer: `Tokenizer` of the model.
        hparams: `HParams` with the default `beam_size`, `alpha` and `extra_length`.
        threads: Number of batches to translate in parallel, with one thread each (default: number of cores).

    Raises:
        UserError: CTranslate2 is not installed.
    """

    engine = "ctranslate2"
    supports_phrases = False

    def __init__(self, read_files, tokenizer, hparams, threads=None):
        with optional_import("engine ctranslate2", "ctranslate2", "ctranslate2"):
            import ctranslate2
        super().__init__(tokenizer, hparams)
        self._library = ctranslate2
        # Each thread has its own batch. Threads that share a batch wait for each other, which is slow on busy cores.
        self._open = lambda count: ctranslate2.Translator(
            "model", device="cpu", inter_threads=count, intra_threads=1, files=read_files()
        )
        self._engine = self._open(usable_cores() if threads is None else threads)
        self._pieces = tokenizer.pieces(range(tokenizer.vocab_size))
        self._ids = {piece: index for index, piece in enumerate(self._pieces)}

    @classmethod
    def from_run(cls, run, checkpoint=None):
        """Return a translator for a `Run`. The run directory caches the converted model (see `conversion.cache`)."""
        (checkpoint,) = checkpoint if isinstance(checkpoint, (list, tuple)) else [checkpoint]
        return cls(functools.partial(converted_files, run, checkpoint), run.tokenizer, run.hparams)

    @classmethod
    def from_export(cls, folder, description):
        """Return a translator for an export.

        Args:
            folder: Directory of an export with `--format=ctranslate2`.
            description: Contents of the export's `export.json`.
        """
        search = {name: description[name] for name in ("beam_size", "alpha", "extra_length")}

        def read_files():
            names = "config.json", "model.bin", "shared_vocabulary.json"
            return {name: (Path(folder) / name).read_bytes() for name in names if name in description["files"]}

        return cls(read_files, load_tokenizer(folder), HParams().replace(**search))

    def _check_supported(self, options, alignments, phrases):
        requested = {"constraints": options.constraint, "alignments": alignments, "phrases": phrases}
        for name, value in {**requested, **options.against_repetition}.items():
            if value:
                raise UserError(f"engine ctranslate2 does not support {name}. Use engine keras.")

    def _search(self, rows, texts, sources, prefixes, phrases, options):
        limits = {}
        for i in rows:
            self._check_length(i, sources[i], "source")
            self._check_length(i, [*prefixes[i], EOS], "prefix")
            limit = max(len(sources[i]) + options.extra_length, len(prefixes[i]) + 1)
            limits[i] = min(limit, POSITIONS)
        engine = self._engine
        if options.sampling:
            # CTranslate2 seeds a thread when the thread starts. With several threads, samples would vary between calls.
            self._library.set_random_seed(options.sampling.seed % 2**32)
            engine = self._open(1)
        start = functools.partial(self._start, engine, sources, prefixes, options)
        # Rows that need further calls wait for the end, because these calls would wait for all pending batches.
        too_long, unscored = {}, {}
        for batch, results in start({i: _rounded_up(limit) for i, limit in limits.items()}):
            found = self._found(batch, results, prefixes, options)
            too_long |= {i: limits[i] for i in batch if max(len(ids) for ids, _ in found[i]) > limits[i]}
            done = [i for i in batch if i not in too_long and all(log_p is not None for _, log_p in found[i])]
            unscored |= {i: found[i] for i in batch if i not in done}
            yield {i: self._hypotheses(texts[i], found[i], options) for i in done}
        for batch, results in start(too_long):
            unscored |= self._found(batch, results, prefixes, options)
        rest, count = [*unscored], BATCH_ROWS * self._engine.num_translators
        for batch in (rest[begin : begin + count] for begin in range(0, len(rest), count)):
            found = self._with_scores({i: unscored[i] for i in batch}, sources)
            yield {i: self._hypotheses(texts[i], found[i], options) for i in batch}

    def _start(self, engine, sources, prefixes, options, limits):
        """Translate the rows in `limits` on all threads. Yield (rows, pending results) of each batch.

        Only a few batches are pending at a time, because the process cannot exit before they are finished.

        Args:
            limits: {row: maximum number of output tokens, with EOS}.
        """
        sampling = options.sampling
        if sampling:
            how = {
                "beam_size": 1, "num_hypotheses": 1 if sampling.top_k == 1 else options.beam_size,
                "sampling_topk": min(sampling.top_k, self.tokenizer.vocab_size),
                "sampling_topp": sampling.top_p, "sampling_temperature": sampling.temperature,
            }  # fmt: skip
        else:
            how = {
                "beam_size": options.beam_size, "num_hypotheses": options.beam_size, "length_penalty": options.alpha,
            }  # fmt: skip
        share = max(1, -(-len(limits) // engine.num_translators))  # rows per thread
        pending: collections.deque = collections.deque()
        for limit, rows in _batches(limits, sources, min(share, BATCH_ROWS)):
            if len(pending) == 2 * engine.num_translators:
                yield pending.popleft()
            results = engine.translate_batch(
                [self._named(sources[i][:-1]) for i in rows],
                [self._named(prefixes[i]) for i in rows] if any(prefixes[i] for i in rows) else None,
                max_decoding_length=limit - 1,
                min_decoding_length=min(options.min_length, limit - 1), return_scores=True, return_end_token=True,
                asynchronous=True, **how,
            )  # fmt: skip
            pending.append((rows, results))
        yield from pending

    def _found(self, rows, results, prefixes, options):
        """Return {row: [(ids with EOS, log-probability or None), …]} for the pending results of `_start`."""
        found = {}
        for i, pending in zip(rows, results):
            found[i], result = [], pending.result()
            for pieces, score in zip(result.hypotheses, result.scores):
                if math.isnan(score):
                    raise NonFiniteOutputs(i)
                ids = [self._ids[piece] for piece in pieces]
                if ids[-1:] == [EOS] and not (options.sampling or prefixes[i] or options.min_length):
                    found[i].append((ids, score * len(ids) ** options.alpha))
                else:
                    # `_with_scores` scores these ids, because CTranslate2's score does not include the prefix or EOS,
                    # or is based on modified probabilities.
                    found[i].append((ids if ids[-1:] == [EOS] else [*ids, EOS], None))
            if options.sampling and options.sampling.top_k == 1:  # CTranslate2 returns a single, greedy output
                found[i] *= options.beam_size
        return found

    def _with_scores(self, found, sources):
        """Return `found`, {row: [(ids, log-probability or None), …]}, with all log-probabilities."""
        owners, missing = [], []
        for i, outputs in found.items():
            new = [ids for ids, log_p in outputs if log_p is None]
            owners, missing = owners + [i] * len(new), missing + new
        with errors_of(owners):
            scores = iter([float(log_p.sum()) for _, log_p, _ in self._scored([sources[i] for i in owners], missing)])
        return {
            i: [(ids, next(scores) if log_p is None else log_p) for ids, log_p in outputs]
            for i, outputs in found.items()
        }

    def _hypotheses(self, text, found, options):
        """Return the `nbest` best hypotheses of a text, sorted by this project's score."""
        if not options.sampling:  # an output that reaches the length limit gets EOS, and can be equal to another output
            found = {tuple(ids): log_p for ids, log_p in found}.items()
        scored = [(score_of(log_p, len(ids), options.alpha), log_p, tuple(ids)) for ids, log_p in found]
        scored = sorted(scored, reverse=True)[: options.nbest]
        texts = self.tokenizer.decode_outputs([text] * len(scored), [list(ids) for _, _, ids in scored])
        return [Hypothesis(output, ids, log_p, score) for output, (score, log_p, ids) in zip(texts, scored)]

    def _scored(self, sources, targets, alignments=False):
        for i, (source, target) in enumerate(zip(sources, targets)):
            self._check_length(i, source, "source")
            self._check_length(i, target, "target")
        count = 8 * BATCH_ROWS * self._engine.num_translators  # Python handles Ctrl-C only between two calls
        for begin in range(0, len(sources), count):
            sides = ([self._named(ids[:-1]) for ids in side[begin : begin + count]] for side in (sources, targets))
            for i, result in enumerate(self._engine.score_batch(*sides, max_batch_size=BATCH_ROWS), start=begin):
                log_p = np.array(result.log_probs, "float32")
                if not np.isfinite(log_p).all():
                    raise NonFiniteOutputs(i)
                yield i, log_p, None

    def _named(self, ids):
        return [self._pieces[i] for i in ids]

    def _check_length(self, number, ids, side):
        if len(ids) > POSITIONS:
            raise TextError(
                number,
                f"the {side} of {{}} must have at most {POSITIONS:,} tokens with engine ctranslate2, got {len(ids):,}. "
                f"{'Shorten the prefix' if side == 'prefix' else 'Split the text'}, or use engine keras.",
            )


def _rounded_up(limit):
    return min(-(-limit // LIMIT_STEP) * LIMIT_STEP, POSITIONS)


def _batches(limits, sources, count):
    """Yield (limit, rows) for each batch of at most `count` rows with the same limit and similar source lengths.

    Args:
        limits: {row: limit}.
        sources: Token ids of the source of each row.
        count: Maximum number of rows per batch.
    """
    groups = collections.defaultdict(list)
    for row, limit in limits.items():
        groups[limit].append(row)
    for limit, rows in sorted(groups.items()):
        rows.sort(key=lambda row: len(sources[row]), reverse=True)
        yield from ((limit, rows[begin : begin + count]) for begin in range(0, len(rows), count))
