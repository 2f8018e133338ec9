"""Names and memory layouts of Marian's weights in Hugging Face transformers."""

import numpy as np

EMBEDDING, LOGITS_BIAS = "model.shared.weight", "final_logits_bias"


def layer_weights(depths):
    """Yield (name in Marian, name in this project, axis) for each weight of the layers.

    In this project, a name is the path of a variable without the name of the model. `axis` is the axis of the
    d_model channels in the array, or None if no axis has these channels. Matrices have the shape `[inputs, outputs]` in
    this project, but `[outputs, inputs]` in Marian.

    Args:
        depths: {"encoder": number of layers, "decoder": number of layers}.
    """
    for side, depth in depths.items():
        attentions = {"self_attn": "self_attention"}
        if side == "decoder":
            attentions["encoder_attn"] = "cross_attention"
        for index in range(depth):
            there, here = f"model.{side}.layers.{index}", f"{side}/layer_{index + 1}"
            for name, path in attentions.items():
                for letter, projection in (("q", "query"), ("k", "key"), ("v", "value")):
                    yield f"{there}.{name}.{letter}_proj.weight", f"{here}/{path}/{projection}", 0
                    yield f"{there}.{name}.{letter}_proj.bias", f"{here}/{path}/{projection}_bias", None
                yield f"{there}.{name}.out_proj.weight", f"{here}/{path}/output", 1
                yield f"{there}.{name}.out_proj.bias", f"{here}/{path}/output_bias", 0
            yield f"{there}.fc1.weight", f"{here}/feed_forward/kernel_1", 0
            yield f"{there}.fc1.bias", f"{here}/feed_forward/bias_1", None
            yield f"{there}.fc2.weight", f"{here}/feed_forward/kernel_2", 1
            yield f"{there}.fc2.bias", f"{here}/feed_forward/bias_2", 0
            norms = {f"{name}_layer_norm": path for name, path in attentions.items()}
            for name, path in {**norms, "final_layer_norm": "feed_forward"}.items():
                yield f"{there}.{name}.weight", f"{here}/{path}_residual/normalization/gamma", 0
                yield f"{there}.{name}.bias", f"{here}/{path}_residual/normalization/beta", 0


def channel_order(d_model):
    """Return the indices of this project's channels in Marian's order, int `[d_model]`.

    Marian has all sines first, followed by all cosines. In this project, sines and cosines alternate (§3.5).
    """
    return np.r_[0:d_model:2, 1:d_model:2]


def to_marian(array, axis):
    """Convert an array from this project to Marian's layout.

    Args:
        array: `[inputs, outputs]`, or a vector.
        axis: Axis of the d_model channels, or None.
    """
    if axis is not None:
        array = np.take(array, channel_order(array.shape[axis]), axis)
    return np.ascontiguousarray(array.T)


def from_marian(array, axis):
    """Convert an array from Marian to this project's layout. This function is the inverse of `to_marian`."""
    array = array.T
    if axis is not None:
        array = np.take(array, np.argsort(channel_order(array.shape[axis])), axis)
    return array
