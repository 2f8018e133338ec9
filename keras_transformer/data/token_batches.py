"""TokenBatches: the batches of a plan as padded arrays, each a pure function of its number."""

import keras
import numpy as np

from keras_transformer.data.tokenizers.base import BOS, PAD
from keras_transformer.utils.timing import Stopwatch

WORD_DROPOUT = 0x776F7264
"""First part of the seed of hidden words, so that their random stream is not that of an epoch's order."""


class TokenBatches(keras.utils.PyDataset):
    """Batches `((source, decoder_input), labels, weights)` of token ids.

    source is int32 `[rows, source_length]`, the others `[rows, target_length]`; the decoder's input is the target
    shifted right by one behind BOS. A label's weight, float32, is 1 / (target tokens of the batch), 0 on padding.

    Args:
        split: `Split` of a token store.
        plan: `BatchPlan` over its lengths.
        start: Number of the first batch: the step at which training resumes.
        endless: Whether batches continue after an epoch, as for training, or end, as for validation.
        row_multiple: Rows are filled up with empty ones to a multiple of this, so that replicas share them evenly.
        few_shapes: Whether a batch is padded up to one of the plan's few shapes, for steps that are compiled for each
            shape, or only to its own longest. By default on all backends but TensorFlow.
        stopwatch: `Stopwatch` of the making of batches, a new one by default.
        word_dropout: Share of source tokens that are hidden; which ones depends on the plan's seed and the batch's
            number alone.
        hidden_ids: int `[vocab_size]`: what stands for each id where it is hidden, as a tokenizer's `hidden_ids`.
        part: (number, count): a worker's part of each batch, the rows of one of `count` equal blocks. Only those are
            read. `shape`, `tokens` and `sequences` are still of the whole batch.
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
        """Number of batches that go through the corpus once."""
        return self.plan.batches_per_epoch

    @property
    def num_batches(self):
        """None where batches are endless: Keras must not shuffle them."""
        return None if self.endless else self.batches_per_epoch

    def __getitem__(self, index):
        with self.stopwatch:
            rows, source_length, target_length = self.shape(index)
            number, count = self.part
            rows //= count
            batch = self.plan.batch(self.start + index)
            own = slice(number * rows, (number + 1) * rows)
            source = _padded(self.split.source, batch.rows[own], rows, source_length)
            if self.word_dropout:
                self._hide_words(source, self.start + index, own)
            labels = _padded(self.split.target, batch.rows[own], rows, target_length)
            decoder_input = np.empty_like(labels)
            decoder_input[:, 0] = BOS
            decoder_input[:, 1:] = labels[:, :-1]
            tokens = self.split.target.lengths[batch.rows].sum()  # of all parts
            return (source, decoder_input), labels, ((labels != PAD) / tokens).astype("float32")

    def _hide_words(self, source, number, own=slice(None)):
        batch = self.plan.batch(number)
        # Drawn without padding, which differs between backends, and of the whole batch, which parts share.
        random = np.random.default_rng([WORD_DROPOUT, self.plan.seed, number])
        chances = random.random((len(batch.rows), batch.source_length))[own]
        part = source[: len(chances), : batch.source_length]
        part[:] = np.where(chances < self.word_dropout, self.hidden_ids[part], part)

    def shape(self, index):
        """Return (rows, source_length, target_length) of batch `index`, padding included."""
        batch = self.plan.batch(self.start + index)
        rows, *lengths = batch.shape if self.few_shapes else (len(batch.rows), batch.source_length, batch.target_length)
        return -(-rows // self.row_multiple) * self.row_multiple, *lengths

    def shapes(self, count):
        """Return the distinct `shape`s of the next `count` batches, in the order of their first use."""
        every = 2 * self.batches_per_epoch  # batches that include a whole epoch, wherever they start
        return list(dict.fromkeys(map(self.shape, range(min(count, every)))))

    def tokens(self, index):
        """Return the source and target tokens of batch `index`, padding aside."""
        rows = self.rows(index)
        return int(self.split.source.lengths[rows].sum() + self.split.target.lengths[rows].sum())

    def rows(self, index):
        """Return the rows of the split that make batch `index`, int `[rows]`."""
        return self.plan.batch(self.start + index).rows

    def replace(self, **changes):
        """Return the same batches with some of `start`, `endless`, `few_shapes`, … changed."""
        names = ("start", "endless", "row_multiple", "few_shapes", "stopwatch", "word_dropout", "hidden_ids",
                 "part")  # fmt: skip
        return TokenBatches(self.split, self.plan, **{name: getattr(self, name) for name in names} | changes)

    def as_dataset(self, replicas=1):
        """Return a `tf.data.Dataset` of the batches with open shapes, so that fit is traced once.

        Args:
            replicas: Each batch is cut into as many equal blocks of rows, which come one after the other.
        """
        import tensorflow as tf

        def load(index):
            (source, decoder_input), labels, weights = self[int(index)]
            return [array.reshape(replicas, -1, array.shape[1]) for array in (source, decoder_input, labels, weights)]

        def blocks(index):
            # Not `from_generator`, which has the process give all free memory back at once, and then fetch it again.
            arrays = tf.numpy_function(load, [index], 3 * (tf.int32,) + (tf.float32,))
            for array in arrays:
                array.set_shape((replicas, None, None))
            source, decoder_input, labels, weights = arrays
            return (source, decoder_input), labels, weights

        numbers = tf.data.Dataset.counter() if self.endless else tf.data.Dataset.range(self.num_batches)
        size = tf.data.INFINITE_CARDINALITY if self.endless else self.num_batches * replicas
        dataset = numbers.map(blocks).unbatch().apply(tf.data.experimental.assert_cardinality(size))
        options = tf.data.Options()
        options.autotune.enabled = False  # nothing to tune here, and its thread can hold up the end of `fit` for 10 s
        return dataset.prefetch(4 * replicas).with_options(options)


def _padded(sequences, rows, count, length):
    """int32 `[count, length]`, the sequences of `rows`, then PAD."""
    ids = np.full((count, length), PAD, dtype=np.int32)
    for place, row in enumerate(rows):
        sequence = sequences[row]
        ids[place, : len(sequence)] = sequence
    return ids
