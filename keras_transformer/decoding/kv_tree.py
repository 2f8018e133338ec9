"""The decoder's key/value cache during a search, stored as a tree with one node per position and beam.

Beams with a common prefix share the nodes of the prefix. The path of a beam marks the nodes of its hypothesis. All
paths form an array, bool `[batch, beams, nodes]`. To reorder hypotheses, the search reorders only their paths and does
not copy keys and values.

The search runs in segments of several steps. Two arrays contain the nodes: `past` is constant during a segment, and
each step writes one node per beam to `recent`. Between segments, `compact` joins both arrays into a new `past` and
drops the nodes that are not on any path. Usually one node per position remains.
"""

import numpy as np
from keras import ops, tree

from keras_transformer.decoding.gather import take_rows


def extend_path(path, node, past_length, beam_size):
    """Add each beam's newest node to its path. Return the new paths.

    Args:
        path: bool `[batch, beams, nodes]`.
        node: Scalar int, index of the first beam's newest node in `recent`.
        past_length: Number of nodes in `past`.
        beam_size: Number of beams.
    """
    own = past_length + node + ops.arange(beam_size)
    return path | (ops.arange(ops.shape(path)[2])[None] == own[:, None])[None]


def live_nodes(path, alive, size=lambda number: number):
    """Return the nodes on the paths of unfinished hypotheses. This function uses NumPy.

    Args:
        path: bool `[batch, beams, nodes]`.
        alive: bool `[batch, beams]`, True if a beam contains an unfinished hypothesis.
        size: Function that rounds up the maximum number of nodes, to limit the number of shapes.

    Returns:
        int32 `[batch, most]`, the nodes of each sentence in ascending order, padded with nodes that are on none of the
        paths. `most` is the rounded maximum number of nodes of a sentence.
    """
    used = np.any(path & alive[:, :, None], axis=1)
    most = min(size(int(used.sum(axis=1).max())), path.shape[2])
    return np.argsort(~used, axis=1, kind="stable")[:, :most].astype("int32")


def compact(path, past, recent, nodes, steps, beam_size):
    """Join `past` and `recent` into a new `past`.

    Args:
        path: bool `[batch, beams, nodes]`.
        past, recent: Nested keys and values, `[batch, heads, length, d]`.
        nodes: int32 `[batch, most]`, the nodes to keep.
        steps: Number of steps in the next segment.
        beam_size: Number of beams.

    Returns:
        The path `[batch, beams, most + steps * beam_size]`, and the new `past`, `[batch, heads, most, d]`.
    """

    def kept(values):  # `[batch, …, nodes, d]`
        shape = (*ops.shape(values)[:2], ops.shape(nodes)[1])
        return take_rows(values, ops.broadcast_to(nodes[:, None], shape))

    path = ops.pad(kept(path[..., None])[..., 0], [(0, 0), (0, 0), (0, steps * beam_size)])
    return path, tree.map_structure(lambda old, new: kept(ops.concatenate([old, new], axis=2)), past, recent)
