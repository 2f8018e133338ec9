"""TokenBatches: the batches of a plan as padded arrays, each a pure function of its index."""

import keras
import numpy as np

from keras_transformer.data.tokenizers.base import BOS, PAD
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.timing import Stopwatch

WORD_DROPOUT = 0x776F7264
"""First part of the seed for hidden words, so that their random stream differs from others with the same seed."""


class TokenBatches(keras.utils.PyDataset):
    """Batches `((source, decoder_input), labels, weights)` of token ids.

    source is int32 `[rows, source_length]`. decoder_input and labels are int32 `[rows, target_length]`; decoder_input
    is the target shifted right by one, after BOS. weights, float32 `[rows, target_length]`, are 1 / (target tokens of
    the batch), and 0 on padding.

    Args:
        split: `Split` of a token store.
        plan: `BatchPlan` over its index.
        start: Index of the first batch, which is the step at which training resumes.
        endless: Whether batches continue for any number of epochs, as in training, or end after one epoch.
        row_multiple: Divisor of the number of rows. Empty rows fill up a batch so that replicas get equal shares.
        few_shapes: Whether a batch is padded to one of the plan's few shapes, for steps that are compiled for each
            shape, or only to its own longest sequences (default: True except on TensorFlow).
        stopwatch: `Stopwatch` that measures the assembly of batches (default: a new one).
        word_dropout: Share of source tokens that are hidden. The choice depends only on the plan's seed and the index
            of the batch.
        hidden_ids: int `[vocab_size]`, the replacement of each hidden id, such as `Tokenizer.hidden_ids`.
        part: (index, count) for worker `index` of `count`, which reads only its equal share of the rows. `shape`,
            `tokens` and `rows` still describe the whole batch.
    """

    def __init__(
        self, split, plan, start=0, endless=True, row_multiple=1, few_shapes=None, stopwatch=None, word_dropout=0.0,
        hidden_ids=None, part=(0, 1),
    ):  # fmt: skip
        super().__init__(workers=1)
        self.stopwatch = stopwatch or Stopwatch()
        self.split, self.plan, self.start, self.endless, self.row_multiple = split, plan, start, endless, row_multiple
        self.word_dropout, self.hidden_ids, self.part = word_dropout, hidden_ids, part
        self.few_shapes = keras.backend.backend() != "tensorflow" if few_shapes is None else few_shapes

    @property
    def batches_per_epoch(self):
        """Number of batches per epoch."""
        return self.plan.batches_per_epoch

    @property
    def num_batches(self):
        """Number of batches, or None if they are endless, which also prevents Keras from shuffling them."""
        return None if self.endless else self.batches_per_epoch

    def __getitem__(self, index):
        with self.stopwatch:
            try:
                return self._assemble(self.start + index)
            except UserError as error:  # kept, because the backend raises an error of another type instead
                self.split.failure = error
                raise

    def _assemble(self, index):
        batch = self.plan.batch(index)
        rows, source_length, target_length = self._padded_shape(batch)
        number, count = self.part
        rows //= count
        own = slice(number * rows, (number + 1) * rows)
        source = self.split.source.padded(batch.rows[own], rows, source_length)
        if self.word_dropout:
            self._hide_words(source, index, batch, own)
        labels = self.split.target.padded(batch.rows[own], rows, target_length)
        decoder_input = np.empty_like(labels)
        decoder_input[:, 0] = BOS
        decoder_input[:, 1:] = labels[:, :-1]
        # The weight depends on the tokens of all parts.
        weights = np.where(labels != PAD, np.float32(1 / batch.target_tokens), np.float32(0))
        return (source, decoder_input), labels, weights

    def _hide_words(self, source, index, batch, own=slice(None)):
        # Draw for the unpadded batch, because padding depends on the backend, and for all parts together.
        random = np.random.default_rng([WORD_DROPOUT, self.plan.seed, index])
        chances = random.random((len(batch.rows), batch.source_length))[own]
        part = source[: len(chances), : batch.source_length]
        part[:] = np.where(chances < self.word_dropout, self.hidden_ids[part], part)

    def shape(self, index):
        """Return the shape (rows, source_length, target_length) of batch `index`, padding included."""
        if self.few_shapes:
            return self._with_empty_rows(self.plan.shape(self.start + index))
        return self._padded_shape(self.plan.batch(self.start + index))

    def shapes(self, count):
        """Return the distinct `shape`s of the next `count` batches, in the order of their first use."""
        if self.few_shapes:
            found = map(self._with_empty_rows, self.plan.shapes_of(self.start, count))
        else:
            found = map(self.shape, range(min(count, 2 * self.batches_per_epoch)))
        return list(dict.fromkeys(found))

    def _padded_shape(self, batch):
        shape = batch.shape if self.few_shapes else (len(batch.rows), batch.source_length, batch.target_length)
        return self._with_empty_rows(shape)

    def _with_empty_rows(self, shape):
        rows, *lengths = shape
        return -(-rows // self.row_multiple) * self.row_multiple, *lengths

    def tokens(self, index):
        """Return the number of source and target tokens of batch `index`, without padding."""
        batch = self.plan.batch(self.start + index)
        return batch.source_tokens + batch.target_tokens

    def rows(self, index):
        """Return the rows of the split that batch `index` contains, int64 `[rows]`."""
        return self.plan.batch(self.start + index).rows

    def replace(self, **changes):
        """Return the same batches with some of `start`, `endless`, `few_shapes`, … changed."""
        names = ("start", "endless", "row_multiple", "few_shapes", "stopwatch", "word_dropout", "hidden_ids",
                 "part")  # fmt: skip
        return TokenBatches(self.split, self.plan, **{name: getattr(self, name) for name in names} | changes)

    def as_dataset(self, replicas=1):
        """Return a `tf.data.Dataset` of the batches with unknown lengths in its shapes, so that `fit` is traced once.

        Args:
            replicas: Number of equal blocks into which the rows of each batch are cut. Each block is an element.
        """
        import tensorflow as tf

        def load(index):
            (source, decoder_input), labels, weights = self[int(index)]
            return [array.reshape(replicas, -1, array.shape[1]) for array in (source, decoder_input, labels, weights)]

        def blocks(index):
            # `from_generator` would make the process release all free memory and then allocate it again.
            arrays = tf.numpy_function(load, [index], 3 * (tf.int32,) + (tf.float32,))
            for array in arrays:
                array.set_shape((replicas, None, None))
            source, decoder_input, labels, weights = arrays
            return (source, decoder_input), labels, weights

        numbers = tf.data.Dataset.counter() if self.endless else tf.data.Dataset.range(self.num_batches)
        size = tf.data.INFINITE_CARDINALITY if self.endless else self.num_batches * replicas
        dataset = numbers.map(blocks).unbatch().apply(tf.data.experimental.assert_cardinality(size))
        options = tf.data.Options()
        options.autotune.enabled = False  # its thread can delay the end of `fit` by 10 s
        return dataset.prefetch(4 * replicas).with_options(options)
