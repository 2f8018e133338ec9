"""BatchPlan: which rows of a corpus make which batch, known ahead for every epoch from the lengths alone.

Pairs are sorted by their longer side. Those that tie there run from long target to long source, and at the
next length back again, so that neighbours are alike in both lengths. This one order is cut into few
segments. A segment has one shape (rows, source, target): the longest source and target in it, and as many
rows as the token budget holds; its pairs are dealt into batches in order. Dynamic programming finds the
cuts that pad least.
"""

import operator
from dataclasses import dataclass

import numpy as np

from keras_transformer.utils.errors import UserError

MAX_CUTS = 500  # places where one shape may give way to the next; more of them hardly pad less
NEVER = 1e30  # tokens; more than any plan pads to, yet finite, so that it can be interpolated


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one batch and the lengths it may be padded to.

    Attributes:
        rows: int64 `[rows]`, indices into the corpus.
        source_length: Tokens of the longest source among these rows.
        target_length: Tokens of the longest target among these rows.
        shape: (rows, source, target), one of the plan's `shapes`, that holds the batch.
    """

    rows: np.ndarray
    source_length: int
    target_length: int
    shape: tuple[int, int, int]


class BatchPlan:
    """Batches of at most `batch_tokens` source and `batch_tokens` target tokens, padding included.

    A batch is a pure function of the arguments and its number, so a run resumes at any step at no cost. Every
    epoch holds each pair once and has the same number of batches, of which at most one is partly filled. From
    epoch to epoch pairs of equal lengths change places, and the batches come in another order.

        plan = BatchPlan(source_lengths, target_lengths, batch_tokens=25000)
        plan.batch(plan.batches_per_epoch).rows  # the first batch of the second epoch

    Args:
        source_lengths: Integers `[corpus]`, tokens with the end of sentence, so at least 1.
        target_lengths: Integers `[corpus]`, the same for targets.
        batch_tokens: The most tokens, rows * length, on either side of a batch.
        seed: Integer from 0 on.
        max_length: Maximum number of tokens per side. The plan drops longer pairs; None keeps all.
        max_shapes: The most distinct shapes: how often a training step may have to be compiled.
        shuffle: False, for validation, keeps ties in file order and batches sorted, the same every epoch.

    Attributes:
        num_pairs: Number of pairs in an epoch.
        num_dropped: Number of pairs that are longer than `max_length`.
        batches_per_epoch: Number of batches that go through the corpus once.
        seed: See above.
        shapes: List of the distinct (rows, source, target) to pad to, each within the budget.

    Raises:
        UserError: No batch can hold the longest pair, or no pair is left.
        ValueError: The lengths or `max_shapes` are invalid.
    """

    def __init__(
        self, source_lengths, target_lengths, batch_tokens,
        *, seed=0, max_length=None, max_shapes=24, shuffle=True,
    ):  # fmt: skip
        source, target = np.asarray(source_lengths), np.asarray(target_lengths)
        _check(source, target, max_shapes)
        longest = np.maximum(source, target)
        keep = np.full(longest.shape, True) if max_length is None else longest <= max_length
        self._rows = np.flatnonzero(keep).astype(np.int32)
        _check_fit(longest, self._rows, batch_tokens, max_length)
        self.num_pairs, self.num_dropped = len(self._rows), len(longest) - len(self._rows)
        self.batch_tokens, self.seed, self._shuffle = batch_tokens, seed, shuffle

        self._group, source, target, size = group_by_lengths(source[keep], target[keep])
        segments = cut_into_segments(source, target, size, batch_tokens, max_shapes)
        self._starts = np.concatenate([np.arange(start, stop, shape[0]) for start, stop, shape in segments])
        self._stops = np.append(self._starts[1:], self.num_pairs)
        self._sources = np.maximum.reduceat(np.repeat(source, size), self._starts)
        self._targets = np.maximum.reduceat(np.repeat(target, size), self._starts)
        self._shapes = [shape for start, stop, shape in segments for _ in range(start, stop, shape[0])]
        self._real_tokens = int(size @ (source + target))
        self.batches_per_epoch = len(self._starts)
        self.shapes = list(dict.fromkeys(self._shapes))
        self._orders = {}  # of the last two epochs asked for

    def batch(self, index):
        """Return `Batch` number `index`, counted from 0 through all epochs.

        It is a look-up, but for the first of an epoch, which orders that epoch's rows.
        """
        index = operator.index(index)
        if index < 0:
            raise IndexError(f"batches are counted from 0, there is no batch {index}")
        epoch, position = divmod(index, self.batches_per_epoch)
        rows, batches = self._order(epoch if self._shuffle else 0)
        number = batches[position]
        return Batch(
            rows=rows[self._starts[number] : self._stops[number]].astype(np.int64),
            source_length=int(self._sources[number]),
            target_length=int(self._targets[number]),
            shape=self._shapes[number],
        )

    def real_share(self, padded_to="longest"):
        """Return the real tokens of an epoch, source and target, as a share of the tokens after padding.

        Args:
            padded_to: "longest", each batch to its own longest source and target, or "shape", to its `shape`.
        """
        if padded_to == "longest":
            padded = (self._stops - self._starts) @ (self._sources + self._targets)
        elif padded_to == "shape":
            padded = sum(rows * (source + target) for rows, source, target in self._shapes)
        else:
            raise ValueError(f'padded_to is "longest" or "shape", not {padded_to!r}')
        return self._real_tokens / int(padded)

    def budget_share(self):
        """Return the mean over batches of rows * length of the longer side, as a share of `batch_tokens`."""
        used = (self._stops - self._starts) * np.maximum(self._sources, self._targets)
        return float(used.mean() / self.batch_tokens)

    def __str__(self):
        return (
            f"{self.num_pairs:,} pairs ({self.num_dropped:,} too long left out) in "
            f"{self.batches_per_epoch:,} batches that use {self.budget_share():.1%} of {self.batch_tokens:,} "
            f"tokens a side; real tokens: {self.real_share('longest'):.1%} padded to the longest, "
            f"{self.real_share('shape'):.1%} padded to {len(self.shapes)} shapes"
        )

    def _order(self, epoch):
        """The rows, int32 `[pairs]`, in the order in which batches are cut from them; the batches' order."""
        orders = self._orders  # replaced, never changed: several threads may ask
        if epoch not in orders:
            pairs, batches = np.arange(self.num_pairs), np.arange(self.batches_per_epoch)
            if self._shuffle:
                random = np.random.default_rng((self.seed, epoch))
                pairs, batches = random.permutation(pairs), random.permutation(batches)
            # The sort is stable: within a group the pairs stay as shuffled.
            rows = self._rows[pairs[np.argsort(self._group[pairs], kind="stable")]]
            orders = self._orders = dict(list(orders.items())[-1:]) | {epoch: (rows, batches)}
        return orders[epoch]


def group_by_lengths(source_lengths, target_lengths):
    """Group pairs of equal lengths and number the groups in the plan's order: neighbours are alike.

    Args:
        source_lengths: Integers `[pairs]`, tokens.
        target_lengths: Integers `[pairs]`, tokens.

    Returns:
        Each pair's group, unsigned `[pairs]`, and the source length, target length and size of each group,
        int64 `[groups]`.
    """
    source, target = source_lengths.astype(np.int64), target_lengths.astype(np.int64)
    longest, lean = np.maximum(source, target), source - target
    key = longest * (2 * longest.max() + 1) + np.where(longest % 2 == 0, lean, -lean)
    _, first, group, size = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    group = group.astype(np.min_scalar_type(len(size)))  # few bits: numpy sorts 16 in linear time
    return group, source[first], target[first], size


def cut_into_segments(source, target, size, batch_tokens, max_shapes):
    """Cut the ordered groups into the segments, at most `max_shapes`, that pad least.

    Pairs that fill no batch of their segment are left to the next one, so only the very last batch may be
    partly filled. No length may exceed `batch_tokens`.

    Args:
        source: int64 `[groups]`, as all three from `group_by_lengths`.
        target: int64 `[groups]`.
        size: int64 `[groups]`.
        batch_tokens: The most tokens on either side of a batch.
        max_shapes: The most segments.

    Returns:
        List of (start, stop, shape), a segment of the ordered pairs each.
    """
    # Cuts are tried between blocks of groups, each of about the same number of tokens.
    tokens = np.cumsum(size * np.maximum(source, target))
    last = np.unique(np.searchsorted(tokens, np.linspace(0, tokens[-1], MAX_CUTS + 1)[1:]))
    first = np.append(0, last[:-1] + 1)
    cuts = np.append(0, np.cumsum(size)[last])  # [blocks + 1], counting pairs

    # [i, j] is the segment of blocks i to j: its lengths, and its padded tokens were all its batches full.
    longest_source = _running_maxima(np.maximum.reduceat(source, first))
    longest_target = _running_maxima(np.maximum.reduceat(target, first))
    pairs = cuts[1:] - cuts[:-1, None]
    padded = np.where(pairs > 0, pairs * (longest_source + longest_target), NEVER)
    # to_go[k][i]: the fewest padded tokens from block i to the end in at most k segments.
    to_go = [np.append(np.full(len(first), NEVER), 0.0)]
    for _ in range(max_shapes - 1):
        to_go.append(np.append((padded + to_go[-1][1:]).min(axis=1), 0.0))

    # What a segment leaves over makes the next one start inside a block, before its cut. So each end is
    # chosen when the start is known, by the padded tokens up to there, now exact, and those to go.
    segments, start = [], 0
    while start < cuts[-1]:
        block = np.searchsorted(cuts, start, side="right") - 1
        sources, targets = longest_source[block, block:], longest_target[block, block:]
        pairs = cuts[block + 1 :] - start
        rows = batch_tokens // np.maximum(sources, targets)
        batches = pairs // rows
        batches[-1] = -(-pairs[-1] // rows[-1])  # a segment to the end takes all that is left,
        rows[-1] = -(-pairs[-1] // batches[-1])  # as evenly as possible
        stops = np.minimum(start + batches * rows, cuts[-1])
        total = batches * rows * (sources + targets) + np.interp(stops, cuts, to_go.pop())
        best = np.where(batches > 0, total, np.inf).argmin()
        segments.append((start, int(stops[best]), (int(rows[best]), int(sources[best]), int(targets[best]))))
        start = int(stops[best])
    return segments


def _running_maxima(values):
    """`[i, j]`: the largest of values i to j; 0 where j < i."""
    square = np.broadcast_to(values, (len(values), len(values)))
    return np.maximum.accumulate(np.triu(square), axis=1)


def _check(source, target, max_shapes):
    """Raise a `ValueError` if the lengths or `max_shapes` are invalid."""
    if source.ndim != 1 or source.shape != target.shape:
        raise ValueError(f"lengths come in pairs, not as {source.shape} and {target.shape}")
    if len(source) and min(source.min(), target.min()) < 1:
        raise ValueError("lengths count the end of sentence, so they are at least 1")
    if max_shapes < 1:
        raise ValueError(f"max_shapes is at least 1, not {max_shapes}")


def _check_fit(longest, rows, batch_tokens, max_length):
    """Raise a `UserError` for a plan without pairs, or with a pair longer than the budget."""
    if not len(longest):
        raise UserError("there are no sentence pairs to make batches of; check that the corpus is not empty")
    if not len(rows):
        raise UserError(
            f"max_length={max_length} leaves none of the {len(longest)} sentence pairs; "
            f"raise it to {longest.min()}, the longer side of the shortest pair, or more"
        )
    worst = rows[longest[rows].argmax()]
    if longest[worst] > batch_tokens:
        less = "take that pair out of the corpus" if max_length is None else f"give max_length={batch_tokens} or less"
        raise UserError(
            f"batch_tokens={batch_tokens} cannot hold pair {worst + 1}, {longest[worst]} tokens on a side; "
            f"raise it to {longest[worst]} or more, or {less}"
        )
