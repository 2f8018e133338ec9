"""BatchPlan, which assigns the pairs of a corpus to batches by length and shuffles them for each epoch.

The plan sorts the pairs by length (`LengthIndex`) and cuts them into a few segments. All batches of a segment have the
same shape (rows, source, target): the number of rows that the token budget allows, and the lengths of the longest
source and the longest target of the segment. Dynamic programming finds the cuts with the least padding.

Within a segment, neighbouring batches form pools. Each epoch shuffles the pairs within each pool, so a pair shares its
batch with different pairs in every epoch. The shuffle is a keyed permutation, which the plan evaluates only for the
rows of one batch.
"""

import operator
from dataclasses import dataclass

import numpy as np

from keras_transformer.data.permutation import permute
from keras_transformer.utils.errors import UserError

MAX_CUTS = 500
"""Number of places at which a segment may end. More places hardly reduce padding."""
NEVER = 1e30
"""Cost in tokens of an impossible plan. The cost is finite because `np.interp` can return NaN for infinite values."""
POOL = 32
"""Minimum mean number of batches per pool, if the epoch has that many batches of the same shape. Larger pools mix pairs
better, but add padding to batches with dynamic shapes."""
BATCHES, PAIRS, PHASE = range(3)
"""Key suffixes of the three random streams: order of batches, order of pairs in a pool, and borders of pools."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one batch and the lengths to which they may be padded.

    Attributes:
        rows: int64 `[rows]`, indices into the corpus.
        source_length: Number of tokens in the longest source.
        target_length: Number of tokens in the longest target.
        source_tokens: Number of source tokens in all rows, without padding.
        target_tokens: Number of target tokens in all rows, without padding.
        shape: Shape of the segment, (rows, source, target). It is at least as large as the batch.
    """

    rows: np.ndarray
    source_length: int
    target_length: int
    source_tokens: int
    target_tokens: int
    shape: tuple[int, int, int]


class BatchPlan:
    """Plan of batches with at most `batch_tokens` source and `batch_tokens` target tokens each, including padding.

    A batch depends only on the arguments and on its index, and any batch can be computed directly. Every epoch contains
    each pair once and has the same number of batches. At most one batch per epoch is only partly filled.

        plan = BatchPlan(LengthIndex.from_lengths(source_lengths, target_lengths), batch_tokens=25000)
        plan.batch(plan.batches_per_epoch).rows  # the first batch of the second epoch

    Args:
        index: `LengthIndex` of the corpus.
        batch_tokens: Maximum number of tokens, rows * length, on each side of a batch.
        seed: Seed of the shuffles, a non-negative integer.
        max_length: Maximum number of tokens in a source or target. The plan drops longer pairs. None keeps all pairs.
        max_shapes: Maximum number of distinct shapes. The backend may have to compile the training step for each one.
        shuffle: Whether to shuffle in every epoch. False keeps the order of the index, for validation.

    Attributes:
        num_pairs: Number of pairs per epoch.
        num_dropped: Number of pairs that the plan drops because of their length.
        batches_per_epoch: Number of batches per epoch.
        batch_tokens: The argument `batch_tokens`.
        seed: The argument `seed`.
        shapes: List of the distinct shapes (rows, source, target) to which batches can be padded.

    Raises:
        UserError: The longest pair does not fit into a batch, or no pairs remain.
        ValueError: `max_shapes` is less than 1.
    """

    def __init__(self, index, batch_tokens, *, seed=0, max_length=None, max_shapes=24, shuffle=True):
        if max_shapes < 1:
            raise ValueError(f"max_shapes must be at least 1, got {max_shapes}")
        kept = len(index) if max_length is None else _groups_within(index, max_length)
        _check_fit(index, kept, batch_tokens, max_length)
        self._index, self.batch_tokens, self.seed, self._shuffle = index, batch_tokens, seed, shuffle
        self._source, self._target, size = index.source[:kept], index.target[:kept], index.size[:kept]
        self._ends = np.cumsum(size)
        self.num_pairs = int(self._ends[-1])
        self.num_dropped = int(index.size[kept:].sum())
        self._real_tokens = int(size @ (self._source + self._target))
        self._segments = cut_into_segments(self._source, self._target, size, batch_tokens, max_shapes)
        counts = [-(-(stop - start) // shape[0]) for start, stop, shape in self._segments]
        self._first_batches = np.append(0, np.cumsum(counts))
        self.batches_per_epoch = int(self._first_batches[-1])
        self.shapes = list(dict.fromkeys(shape for _, _, shape in self._segments))

    def batch(self, index):
        """Return the `Batch` at an index. Indices start at 0 and continue across epochs."""
        epoch, segment, number = self._locate(index)
        start, stop, shape = self._segments[segment]
        rows = shape[0]
        positions = np.arange(start + number * rows, min(start + (number + 1) * rows, stop))
        if self._shuffle:
            pool, first, last = self._pool(epoch, segment, number)
            begin, end = start + first * rows, min(start + last * rows, stop)
            positions = begin + permute(positions - begin, end - begin, (self.seed, epoch, segment, pool, PAIRS))
        groups = np.searchsorted(self._ends, positions, side="right")
        source, target = self._source[groups], self._target[groups]
        return Batch(
            rows=self._index.rows(positions),
            source_length=int(source.max()), target_length=int(target.max()),
            source_tokens=int(source.sum()), target_tokens=int(target.sum()), shape=shape,
        )  # fmt: skip

    def shape(self, index):
        """Return the `shape` of the batch at `index`. This is faster than `batch(index).shape`."""
        return self._segments[self._locate(index)[1]][2]

    def shapes_of(self, start, count):
        """Return the distinct shapes of `count` batches from index `start`, in the order of their first use."""
        found, stop = {}, start + count
        while start < stop and len(found) < len(self.shapes):
            epoch, position = divmod(start, self.batches_per_epoch)
            start += min(stop - start, self.batches_per_epoch - position)
            segments, first = np.unique(
                self._segments_at(epoch, np.arange(position, start - epoch * self.batches_per_epoch)), return_index=True
            )
            found |= dict.fromkeys(self._segments[segment][2] for segment in segments[np.argsort(first)])
        return list(found)

    def real_share(self, padded_to="longest"):
        """Return the share of the positions in an epoch's batches that contain tokens instead of padding.

        Args:
            padded_to: "shape" for batches that are padded to their `shape`, or "longest" for batches that are padded to
                their longest source and target. The result for "longest" is a lower bound, because it assumes that each
                batch contains the longest sequences of its pool.
        """
        if padded_to == "longest":
            pairs, sources, targets = self._pools()
            padded = pairs @ (sources + targets)
        elif padded_to == "shape":
            padded = np.diff(self._first_batches) @ [shape[0] * (shape[1] + shape[2]) for _, _, shape in self._segments]
        else:
            raise ValueError(f'padded_to must be "longest" or "shape", got {padded_to!r}')
        return self._real_tokens / int(padded)

    def __str__(self):
        return (
            f"{self.num_pairs:,} pairs ({self.num_dropped:,} too long) in {self.batches_per_epoch:,} "
            f"batches of at most {self.batch_tokens:,} tokens per side; real tokens: {self.real_share('longest'):.1%} "
            f"padded to the longest, {self.real_share('shape'):.1%} padded to {len(self.shapes)} shapes"
        )

    def _locate(self, index):
        """Return (epoch, segment, index in the segment) of a batch."""
        index = operator.index(index)
        if index < 0:
            raise IndexError(f"the index of a batch must be at least 0, got {index}")
        epoch, position = divmod(index, self.batches_per_epoch)
        (place,) = self._places(epoch, [position])
        segment = int(np.searchsorted(self._first_batches, place, side="right")) - 1
        return epoch, segment, int(place - self._first_batches[segment])

    def _places(self, epoch, positions):
        """Map positions in an epoch, integers `[count]`, to indices of batches in the unshuffled order (by length)."""
        if not self._shuffle:
            return positions
        return permute(positions, self.batches_per_epoch, (self.seed, epoch, BATCHES))

    def _segments_at(self, epoch, positions):
        """Return the segments of the batches at the given positions of an epoch, integers `[count]`."""
        return np.searchsorted(self._first_batches, self._places(epoch, positions), side="right") - 1

    def _pool(self, epoch, segment, number):
        """Return the pool that contains batch `number` of a segment, as (pool index, first batch, last batch + 1).

        In each epoch, the borders of pools shift by up to half a pool.
        """
        count = int(self._first_batches[segment + 1] - self._first_batches[segment])
        pools = max(1, count // POOL)
        phase = np.random.default_rng((self.seed, epoch, segment, PHASE)).random() - 0.5 if pools > 1 else 0.0
        borders = _borders(count, pools, phase)
        pool = int(np.searchsorted(borders, number, side="right")) - 1
        return pool, int(borders[pool]), int(borders[pool + 1])

    def _pools(self):
        """Return (number of pairs, longest source, longest target) of each pool, three int64 arrays `[pools]`."""
        starts = []
        for (start, _, shape), count in zip(self._segments, np.diff(self._first_batches)):
            starts.append(start + _borders(count, max(1, count // POOL), 0.0)[:-1] * shape[0])
        starts = np.concatenate(starts)
        ends = np.append(starts[1:], self.num_pairs)
        # The pairs of a group have equal lengths. A group may span several pools.
        first, last = np.searchsorted(self._ends, [starts, ends - 1], side="right")
        maxima = [np.maximum(np.maximum.reduceat(side, first), side[last]) for side in (self._source, self._target)]
        return ends - starts, *maxima


def cut_into_segments(source, target, size, batch_tokens, max_shapes):
    """Cut the pairs of a `LengthIndex` into at most `max_shapes` segments with the least padding.

    Pairs that do not fill a batch move to the next segment, so only the very last batch may be partly filled. No length
    may exceed `batch_tokens`.

    Args:
        source: int64 `[groups]`, source length of each group.
        target: int64 `[groups]`, target length of each group.
        size: int64 `[groups]`, number of pairs in each group.
        batch_tokens: Maximum number of tokens on each side of a batch.
        max_shapes: Maximum number of segments.

    Returns:
        A list of segments (start, stop, shape). A segment contains the pairs from `start` to `stop - 1`, and `shape` is
        the shape of its batches.
    """
    # For speed, join groups into blocks with about the same number of tokens, and search for cuts between blocks.
    tokens = np.cumsum(size * np.maximum(source, target))
    last = np.unique(np.searchsorted(tokens, np.linspace(0, tokens[-1], MAX_CUTS + 1)[1:]))
    first = np.append(0, last[:-1] + 1)
    cuts = np.append(0, np.cumsum(size)[last])  # `[blocks + 1]`, number of pairs before each cut

    # Entry [i, j] of each matrix below describes the segment of blocks i to j. `padded` counts tokens with padding, as
    # if all batches were full.
    longest_source = _running_maxima(np.maximum.reduceat(source, first))
    longest_target = _running_maxima(np.maximum.reduceat(target, first))
    pairs = cuts[1:] - cuts[:-1, None]
    padded = np.where(pairs > 0, pairs * (longest_source + longest_target), NEVER)
    # to_go[k][i]: minimum number of tokens, including padding, if at most k segments cover the blocks from i onward.
    to_go = [np.append(np.full(len(first), NEVER), 0.0)]
    for _ in range(max_shapes - 1):
        to_go.append(np.append((padded + to_go[-1][1:]).min(axis=1), 0.0))

    # Pairs that do not fill a batch move to the next segment, which then starts inside a block. Choose the
    # end of a segment only after its start is known, so that the computed padding of the segment is exact.
    segments, start = [], 0
    while start < cuts[-1]:
        block = np.searchsorted(cuts, start, side="right") - 1
        sources, targets = longest_source[block, block:], longest_target[block, block:]
        pairs = cuts[block + 1 :] - start
        rows = batch_tokens // np.maximum(sources, targets)
        batches = pairs // rows
        batches[-1] = -(-pairs[-1] // rows[-1])  # the last segment takes all remaining pairs
        rows[-1] = -(-pairs[-1] // batches[-1])  # in batches of about equal size
        stops = np.minimum(start + batches * rows, cuts[-1])
        total = batches * rows * (sources + targets) + np.interp(stops, cuts, to_go.pop())
        best = np.where(batches > 0, total, np.inf).argmin()
        segments.append((start, int(stops[best]), (int(rows[best]), int(sources[best]), int(targets[best]))))
        start = int(stops[best])
    return segments


def _running_maxima(values):
    """Return a matrix in which entry [i, j] is the maximum of values i to j, or 0 if j < i."""
    square = np.broadcast_to(values, (len(values), len(values)))
    return np.maximum.accumulate(np.triu(square), axis=1)


def _borders(count, pools, phase):
    """Return the index of the first batch of each pool, followed by the number of batches, int64 `[pools + 1]`.

    Args:
        count: Number of batches in the segment.
        pools: Number of pools in the segment.
        phase: Shift of the inner borders, as a fraction of a pool, from -0.5 to 0.5.
    """
    borders = np.rint((np.arange(pools + 1) + phase) * count / pools).astype(np.int64)
    borders[0], borders[-1] = 0, count
    return borders


def _groups_within(index, max_length):
    """Return the number of groups with at most `max_length` tokens per side. These groups come first in the index."""
    return int(np.searchsorted(np.maximum(index.source, index.target), max_length, side="right"))


def _check_fit(index, kept, batch_tokens, max_length):
    """Raise a `UserError` if the plan would have no pairs, or if a pair is longer than the token budget."""
    if not len(index):
        raise UserError("the corpus must contain at least one sentence pair, got none. Check the corpus files.")
    longest = np.maximum(index.source, index.target)
    if not kept:
        raise UserError(
            f"max_length={max_length} drops all {index.size.sum()} sentence pairs; "
            f"raise max_length to at least {longest[0]} (the length of the shortest pair)"
        )
    worst = longest[kept - 1]
    if worst > batch_tokens:
        groups = np.flatnonzero(longest == worst)
        row = index.rows((np.cumsum(index.size) - index.size)[groups]).min()
        less = "remove that pair from the corpus" if max_length is None else f"lower max_length to {batch_tokens}"
        raise UserError(
            f"batch_tokens={batch_tokens} is too small for pair {row + 1}, which has {worst} tokens on one side; "
            f"raise batch_tokens to at least {worst}, or {less}"
        )
