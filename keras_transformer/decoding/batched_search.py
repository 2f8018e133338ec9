"""Beam search on batches of token ids, with one model or an ensemble."""

import numpy as np
from keras import ops, tree

from keras_transformer.backend.compilation import COMPILES_EACH_SHAPE, compiled, rounded_up
from keras_transformer.data.tokenizers.base import PAD
from keras_transformer.decoding import kv_tree
from keras_transformer.decoding.beam_search import beams_at_first, can_improve, search, start, step
from keras_transformer.decoding.phrases import has_phrases
from keras_transformer.decoding.token_selection import NEG_INF

SEGMENT = 8
"""Number of steps in a segment. After a segment, the search may remove finished sentences from the batch."""

LENGTH_ALONE = 64
"""Length to which the compiled search for a single sentence pads sources, so that they all have the same shape."""

SHRINK = 0.8
"""Maximum share of unfinished sentences in a batch at which the search removes the finished ones.

Removal copies arrays. With more unfinished sentences, copying would take longer than keeping the finished ones.
"""


class BatchedBeamSearch:
    """Beam search that runs in segments of several steps and removes finished sentences between segments.

    A compiled search for one sentence runs as a single call instead, because segments would take longer to start than
    to compute.

    Args:
        models: List of `Transformer`s with the same vocabulary. The search uses the mean of their probabilities.
        jit_compile: Whether TensorFlow uses XLA. "auto" compiles only the search for single sentences.

    Attributes:
        few_shapes: Whether to round up array sizes, which limits the number of shapes to compile.
        compiles_alone: Whether the search for a single sentence is compiled.
    """

    def __init__(self, models, jit_compile=False):
        self.models, self.compiles_alone = models, bool(jit_compile) or COMPILES_EACH_SHAPE
        jit_compile = jit_compile is True
        self.few_shapes = jit_compile or COMPILES_EACH_SHAPE
        self._whole = compiled(self._run_whole, *models, jit_compile=True)
        self._begin = compiled(self._begin_batch, *models, jit_compile=jit_compile)
        self._segment = compiled(self._run_segment, *models, jit_compile=jit_compile)
        self._compact = compiled(kv_tree.compact, *models, jit_compile=jit_compile)
        self._choose = compiled(_rows, *models)

    def search(self, source, inputs, options):
        """Search for the best translations of one batch.

        Args:
            source: int32 `[batch, source_length]`, NumPy.
            inputs: `SearchInputs`, NumPy.
            options: `SearchOptions`.

        Returns:
            Three NumPy arrays (tokens, log-probabilities, scores), with the best hypothesis first. The tokens are int32
            `[batch, K, L]`, with PAD after EOS. The log-probabilities and the scores are float32 `[batch, K]`. The
            score of a missing hypothesis is NEG_INF. If the model's outputs for a sentence are not finite, its scores
            are NaN. Only the first `inputs.nbest` hypotheses are valid.
        """
        if self.compiles_alone and _has_usual_shape(source, inputs):
            return self._search_alone(source, inputs, options)
        batch, beams, length, steps = len(source), options.beam_size, int(inputs.limits.max()), SEGMENT
        if self.few_shapes:
            length = rounded_up(length)
        tokens = np.full((batch, beams, length), PAD, "int32")
        log_p, scores = (np.full((batch, beams), NEG_INF, "float32") for _ in range(2))
        room = np.full(length, PAD, "int32")  # its shape conveys `length`; an int would be a compile-time constant
        state, caches = self._begin(source, room, inputs, options=options, steps=steps)
        rows = np.arange(batch)  # for each sentence in the batch, its row in the result
        while True:
            state, going = self._segment(state, caches, inputs, options=options, steps=steps)
            staying = self._staying(np.array(going))
            leaving = np.setdiff1d(np.arange(len(rows)), staying)
            found = (state.finished_tokens, state.finished_log_probabilities, state.finished_scores)
            if len(leaving):
                for all_rows, part in zip((tokens, log_p, scores), found):
                    all_rows[rows[leaving]] = np.array(part)[leaving]
                scores[rows[leaving[~np.array(state.finite)[leaving]]]] = np.nan
            if not len(staying):
                return tokens, log_p, scores
            alive = np.array(state.log_probabilities) > NEG_INF / 2
            nodes = kv_tree.live_nodes(np.array(state.path), alive, self._size)
            state, caches = self._compacted(state, caches, nodes, options)
            if len(leaving):
                rows = rows[staying]
                kept, caches, inputs = self._choose((state._replace(index=()), caches, inputs), staying.astype("int32"))
                state = kept._replace(index=state.index)

    def _search_alone(self, source, inputs, options):
        """Run the whole search for a single sentence in one call. See `search`."""
        extra_length = int(inputs.limits[0] - np.count_nonzero(source != PAD))
        source = np.pad(source, [(0, 0), (0, LENGTH_ALONE - source.shape[1])], constant_values=PAD)
        room = np.full(LENGTH_ALONE + rounded_up(extra_length), PAD, "int32")
        tokens, log_p, scores, finite = map(np.array, self._whole(source, room, inputs, options=options))
        return tokens, log_p, np.where(finite[:, None], scores, np.nan)

    def _run_whole(self, source, room, inputs, options):
        """Run all steps. Return the finished tokens, log-probabilities and scores, and whether outputs were finite."""
        steps = ops.shape(room)[0]
        state, caches = self._begin_batch(source, room, inputs, options, steps)
        state, _ = self._run_segment(state, caches, inputs, options, steps)
        return state.finished_tokens, state.finished_log_probabilities, state.finished_scores, state.finite

    def _staying(self, going):
        """Return the rows to keep: all unfinished sentences, and finished sentences that are not yet worth removing."""
        order = np.argsort(~going, kind="stable")
        count = int(going.sum())
        if not count:
            return order[:0]
        if self.few_shapes:  # only halve the batch, to limit the number of shapes
            size = len(going)
            while count <= size // 2:
                size //= 2
            return order[:size]
        return order[:count] if count <= SHRINK * len(going) else np.arange(len(going))

    def _size(self, number):
        return rounded_up(max(number, 2 * SEGMENT)) if self.few_shapes else number

    def _begin_batch(self, source, room, inputs, options, steps):
        """Return the state after the first step, and the `DecoderCache` of each model."""
        caches = [model.start_cache(source) for model in self.models]
        batch, beams = ops.shape(source)[0], beams_at_first(options)
        path = ops.zeros((batch, beams, beams), dtype="bool")
        state = start(batch, ops.shape(room)[0], options, path, self._empty(batch, beams), inputs)
        state = step(state, self._decoder(caches, beams), inputs, options)
        path = ops.pad(state.path, [(0, 0), (0, 0), (0, steps * options.beam_size)])
        return state._replace(path=path, cache=()), _with_past(caches, state.cache)

    def _run_segment(self, state, caches, inputs, options, steps):
        """Run at most `steps` steps. Return the state and a bool `[batch]` array, True for unfinished sentences."""
        decode = self._decoder(caches, options.beam_size, state.index)
        recent = self._empty(ops.shape(state.path)[0], steps * options.beam_size)
        state = search(state._replace(cache=recent), decode, inputs, options, steps)
        return state, can_improve(state, inputs, options)

    def _compacted(self, state, caches, nodes, options):
        """Return the state and the caches with only the given nodes of the key/value tree (see `kv_tree.compact`)."""
        path, past = self._compact(
            state.path, _past_of(caches), state.cache, nodes, steps=SEGMENT, beam_size=options.beam_size
        )
        return state._replace(path=path, cache=()), _with_past(caches, past)

    def _empty(self, batch, nodes):
        """Return zero arrays for the keys and values of `nodes` nodes (see `kv_tree`), for each model."""
        return [model.empty_nodes(batch, nodes) for model in self.models]

    def _decoder(self, caches, beams, first=0):
        """Return the function `decode` for `beam_search.step`. `first` is the index of the segment's first step."""
        caches = [cache._replace(kernels=model.step_kernels()) for model, cache in zip(self.models, caches)]
        past_length = ops.shape(tree.flatten(_past_of(caches))[0])[2]

        def decode(tokens, index, path, recent):
            node = (index - first) * beams
            path = kv_tree.extend_path(path, node, past_length, beams)
            steps = [
                model.decode_step(tokens, index, cache._replace(recent=nodes), node, path)
                for model, cache, nodes in zip(self.models, caches, recent)
            ]
            return mean_logits([logits for logits, _ in steps]), path, [written for _, written in steps]

        return decode


def _past_of(caches):
    """Return the `past` of each `DecoderCache`."""
    return [cache.past for cache in caches]


def _with_past(caches, past):
    """Return the `DecoderCache`s with a new `past` in each of them."""
    return [cache._replace(past=nodes) for cache, nodes in zip(caches, past)]


def mean_logits(logits):
    """Average the probabilities of the models, and return the result as logits `[…, V]`.

    If there is only one model, return its logits unchanged.
    """
    if len(logits) == 1:
        return logits[0]
    log_p = [ops.log_softmax(ops.cast(one, "float32"), axis=-1) for one in logits]
    return ops.logsumexp(ops.stack(log_p), axis=0) - float(np.log(len(logits)))


def _has_usual_shape(source, inputs):
    """Return whether a batch is one short sentence without a prefix, sampling or required phrases."""
    extras = bool(inputs.prefix.any()) or inputs.chances.size > 0 or has_phrases(inputs)
    return len(source) == 1 and source.shape[1] <= LENGTH_ALONE and not extras


def _rows(arrays, rows):
    """Return the given rows of each array in a nested structure."""
    return tree.map_structure(lambda array: ops.take(array, rows, axis=0), arrays)
