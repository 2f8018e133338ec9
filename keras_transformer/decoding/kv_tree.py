"""What the decoder remembers of a search: a tree of keys and values, one node for each position of each beam.

Beams that have a beginning in common share its nodes, and when hypotheses change places nothing is copied: only
each beam's path moves, bool [batch, beams, nodes], which nodes come before it. Nodes are kept in two parts. `past` does
not change during a segment of the search; `recent` is written, K nodes a step. Between segments `compact` makes both
into a new `past`, without the nodes that no beam has on its path any more: mostly one a position is left.
"""

import numpy as np
from keras import ops, tree

from keras_transformer.decoding.gather import take_rows


def extend_path(path, node, past_length, beam_size):
    """Return the path with each beam's own node on it.

    Args:
        path: bool `[batch, beams, nodes]`.
        node: Scalar int, where in `recent` the first beam's node is.
        past_length: Nodes of `past`.
        beam_size: Number of beams.
    """
    own = past_length + node + ops.arange(beam_size)
    return path | (ops.arange(ops.shape(path)[2])[None] == own[:, None])[None]


def live_nodes(path, alive, size=lambda number: number):
    """Return the nodes that are on the path of a living beam, in NumPy.

    Args:
        path: bool `[batch, beams, nodes]`.
        alive: bool `[batch, beams]`.
        size: Function of the most nodes that a sentence has, which rounds it up if shapes should be few.

    Returns:
        int32 `[batch, most]`: each sentence's nodes in order, then others that fill the row up.
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
        steps: Steps of the next segment.
        beam_size: Number of beams.

    Returns:
        The path `[batch, beams, most + steps * beam_size]`, and the new `past`, `[batch, heads, most, d]`.
    """

    def kept(values):  # `[batch, …, nodes, d]`
        shape = (*ops.shape(values)[:2], ops.shape(nodes)[1])
        return take_rows(values, ops.broadcast_to(nodes[:, None], shape))

    path = ops.pad(kept(path[..., None])[..., 0], [(0, 0), (0, 0), (0, steps * beam_size)])
    return path, tree.map_structure(lambda old, new: kept(ops.concatenate([old, new], axis=2)), past, recent)
