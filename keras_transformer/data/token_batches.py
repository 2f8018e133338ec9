"""TokenBatches, which provides the batches of a plan as padded arrays."""

import keras
import numpy as np

from keras_transformer.backend.compilation import COMPILES_EACH_SHAPE
from keras_transformer.data.tokenizers.base import BOS, PAD
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.timing import Stopwatch

WORD_DROPOUT = 0x776F7264
"""First element of the seed for word dropout, so that word dropout and shuffling use independent random numbers."""


class TokenBatches(keras.utils.PyDataset):
    """Batches `((source, decoder_input), labels, weights)` of token ids.

    The arrays are:

    - source: int32 `[rows, source_length]`.
    - labels: int32 `[rows, target_length]`.
    - decoder_input: int32 `[rows, target_length]`, BOS followed by the labels without the last one.
    - weights: float32 `[rows, target_length]`, 1 / (number of target tokens in the batch), or 0 on padding.

    Args:
        split: `Split` of a token store.
        plan: `BatchPlan` for the split's index.
        start: Index of the first batch, which is the step at which training resumes.
        endless: Whether batches continue for any number of epochs, as in training, instead of ending after one epoch.
        row_multiple: Add empty rows until the number of rows is divisible by this value, so that all replicas get the
            same number of rows.
        few_shapes: Whether to pad each batch to one of the few `BatchPlan.shapes`, instead of to the longest sequences
            of the batch. Few shapes save time if the backend compiles a function for each shape (default: True except
            on TensorFlow).
        stopwatch: `Stopwatch` that measures the assembly of batches (default: a new one).
        word_dropout: Share of source tokens to hide. The choice of tokens depends only on the plan's seed and the
            index of the batch.
        hidden_ids: int `[vocab_size]`, such as `Tokenizer.hidden_ids`: for each id, the id that replaces it when the
            token is hidden.
        part: (index of this worker, number of workers). Each worker reads an equal part of the rows. `shape`, `tokens`
            and `rows` still describe the whole batch.
    """

    def __init__(
        self, split, plan, start=0, endless=True, row_multiple=1, few_shapes=COMPILES_EACH_SHAPE, stopwatch=None,
        word_dropout=0.0, hidden_ids=None, part=(0, 1),
    ):  # fmt: skip
        super().__init__(workers=1)
        self.stopwatch = stopwatch or Stopwatch()
        self.split, self.plan, self.start, self.endless, self.row_multiple = split, plan, start, endless, row_multiple
        self.few_shapes, self.word_dropout, self.hidden_ids, self.part = few_shapes, word_dropout, hidden_ids, part

    @property
    def batches_per_epoch(self):
        """Number of batches per epoch."""
        return self.plan.batches_per_epoch

    @property
    def num_batches(self):
        """Number of batches, or None if the batches are endless. With None, Keras does not shuffle the batches."""
        return None if self.endless else self.batches_per_epoch

    def __getitem__(self, index):
        with self.stopwatch:
            try:
                return self._assemble(self.start + index)
            except UserError as error:
                # The backend may replace this error with its own. In that case, `data_errors` raises `failure`.
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
        # The weights depend on the number of tokens in the whole batch, not only in this worker's part.
        weights = np.where(labels != PAD, np.float32(1 / batch.target_tokens), np.float32(0))
        return (source, decoder_input), labels, weights

    def _hide_words(self, source, index, batch, own=slice(None)):
        # Draw random numbers for the whole unpadded batch, so that they depend neither on the backend nor on `part`.
        random = np.random.default_rng([WORD_DROPOUT, self.plan.seed, index])
        chances = random.random((len(batch.rows), batch.source_length))[own]
        part = source[: len(chances), : batch.source_length]
        part[:] = np.where(chances < self.word_dropout, self.hidden_ids[part], part)

    def shape(self, index):
        """Return the shape (rows, source_length, target_length) of batch `index`, including padding."""
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
        """Return the rows of batch `index` as indices into the split, int64 `[rows]`."""
        return self.plan.batch(self.start + index).rows

    def replace(self, **changes):
        """Return a copy with new values for the given arguments, such as `start` and `endless`."""
        names = ("start", "endless", "row_multiple", "few_shapes", "stopwatch", "word_dropout", "hidden_ids",
                 "part")  # fmt: skip
        return TokenBatches(self.split, self.plan, **{name: getattr(self, name) for name in names} | changes)

    def as_dataset(self, replicas=1):
        """Return a `tf.data.Dataset` of the batches.

        The element shapes leave the sequence lengths unspecified, so that TensorFlow does not retrace for each length.

        Args:
            replicas: Number of equal blocks into which to split the rows of each batch. Each block is one
                element of the dataset.
        """
        import tensorflow as tf

        def load(index):
            (source, decoder_input), labels, weights = self[int(index)]
            return [array.reshape(replicas, -1, array.shape[1]) for array in (source, decoder_input, labels, weights)]

        def blocks(index):
            # Do not use `from_generator`: it makes malloc return free memory to the system after each operation.
            arrays = tf.numpy_function(load, [index], 3 * (tf.int32,) + (tf.float32,))
            for array in arrays:
                array.set_shape((replicas, None, None))
            source, decoder_input, labels, weights = arrays
            return (source, decoder_input), labels, weights

        numbers = tf.data.Dataset.counter() if self.endless else tf.data.Dataset.range(self.num_batches)
        size = tf.data.INFINITE_CARDINALITY if self.endless else self.num_batches * replicas
        dataset = numbers.map(blocks).unbatch().apply(tf.data.experimental.assert_cardinality(size))
        options = tf.data.Options()
        options.autotune.enabled = False  # the autotuning thread can delay the end of `fit` by 10 seconds
        return dataset.prefetch(4 * replicas).with_options(options)
