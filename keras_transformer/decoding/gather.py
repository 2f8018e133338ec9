"""Batched gather operations on flattened arrays. `keras.ops.take_along_axis` would copy and broadcast arrays."""

from keras import ops


def take_rows(values, rows):
    """Return the rows with the given indices: `[…, N, D]` and int `[…, M]` → `[…, M, D]`."""
    shape = ops.shape(values)
    flat = ops.reshape(values, (-1, shape[-1]))
    first = ops.arange(ops.shape(flat)[0] // shape[-2], dtype="int32") * shape[-2]
    return ops.take(flat, rows + ops.reshape(first, (*shape[:-2], 1)), axis=0)


def take(values, places):
    """Return the elements with the given indices: `[…, N]` and int `[…, M]` → `[…, M]`."""
    return take_rows(values[..., None], places)[..., 0]
