"""Beam search as one TensorFlow graph, including the loop that `BatchedBeamSearch` runs in Python."""

import tensorflow as tf

from keras_transformer.data.tokenizers.base import PAD
from keras_transformer.decoding import batched_search, kv_tree
from keras_transformer.decoding.batched_search import BatchedBeamSearch
from keras_transformer.decoding.token_selection import NEG_INF


class GraphBeamSearch(BatchedBeamSearch):
    """Variant of `BatchedBeamSearch` that runs inside a `tf.function` and returns the same results.

    Unlike `BatchedBeamSearch`, this class does not detect model outputs that are not finite.

    Args:
        models: See `BatchedBeamSearch`.
    """

    def __init__(self, models):
        super().__init__(models)
        self._compact = kv_tree.compact

    def search(self, source, inputs, options):
        """Run the same search as `BatchedBeamSearch.search`, with tensors as arguments and results.

        Args:
            source: int32 `[batch, source_length]`.
            inputs: `SearchInputs`.
            options: `SearchOptions`.
        """
        batch, length = tf.shape(source)[0], tf.reduce_max(tf.concat([inputs.limits, [1]], axis=0))
        state, caches = self._begin_batch(
            source, tf.fill([length], PAD), inputs, options=options, steps=batched_search.SEGMENT
        )
        beams = (batch, options.beam_size)
        found = (tf.fill((*beams, length), PAD), tf.fill(beams, NEG_INF), tf.fill(beams, NEG_INF))
        loop = (tf.range(batch), tf.fill([batch], True), state, caches, inputs, found)
        *_, found = tf.while_loop(
            lambda rows, going, *rest: tf.reduce_any(going),
            lambda *loop: self._next_segment(options, *loop),
            loop,
            # Each iteration may change the number of sentences and the number of nodes in the key/value tree.
            shape_invariants=tf.nest.map_structure(lambda array: tf.TensorShape([None] * array.shape.rank), loop),
        )
        return found

    def _next_segment(self, options, rows, going, state, caches, inputs, found):
        """Loop body: run `SEGMENT` steps for the sentences `rows`. If few are unfinished, remove the finished ones."""
        state, going = self._run_segment(state, caches, inputs, options=options, steps=batched_search.SEGMENT)
        best = (state.finished_tokens, state.finished_log_probabilities, state.finished_scores)
        found = tuple(tf.tensor_scatter_nd_update(old, rows[:, None], new) for old, new in zip(found, best))
        used = tf.reduce_any(state.path & (state.log_probabilities > NEG_INF / 2)[:, :, None], axis=1)
        most = tf.reduce_max(tf.reduce_sum(tf.cast(used, tf.int32), axis=1))
        nodes = tf.argsort(tf.cast(~used, tf.int32), axis=1, stable=True)[:, :most]
        state, caches = self._compacted(state, caches, nodes, options)
        left = tf.reduce_sum(tf.cast(going, tf.float32))
        few = left <= batched_search.SHRINK * tf.cast(tf.shape(going)[0], tf.float32)
        staying = tf.where(going | ~few)[:, 0]
        kept = (rows, going, state._replace(index=()), caches, inputs)
        kept = tf.nest.map_structure(lambda array: tf.gather(array, staying), kept)
        rows, going, chosen, caches, inputs = kept
        return rows, going, chosen._replace(index=state.index), caches, inputs, found
