"""Taking what is chosen for each sentence apart: one gather, where Keras' `take_along_axis` needs copies."""

from keras import ops


def take_rows(values, rows):
    """`[…, N, D]` and int `[…, M]` → `[…, M, D]`: the chosen rows, copied whole."""
    shape = ops.shape(values)
    flat = ops.reshape(values, (-1, shape[-1]))
    first = ops.arange(ops.shape(flat)[0] // shape[-2], dtype="int32") * shape[-2]
    return ops.take(flat, rows + ops.reshape(first, (*shape[:-2], 1)), axis=0)


def take(values, places):
    """`[…, N]` and int `[…, M]` → `[…, M]`: the chosen elements."""
    return take_rows(values[..., None], places)[..., 0]
