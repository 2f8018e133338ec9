"""OpenNMT-tf's Transformer, post-norm and with one embedding, given our weights.

What differs from this project and is set here: layer normalisation's ε (Keras' 1e-3 there), the ids of BOS and EOS,
and the sinusoids, which it concatenates, counts from 1 and stretches by d/(d−2); a position encoder of ours takes
their place, as its constructor allows. Biases of attention and projection do not exist on either side.
"""

import os
import tempfile

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import opennmt  # noqa: E402
import tensorflow as tf  # noqa: E402

EPSILON = 1e-6
ROWS = [0, 2, 1]
"""Which of our ids its first ids are: PAD, BOS, EOS there; PAD, EOS, BOS here. All others are the same."""


class Interleaved(opennmt.layers.PositionEncoder):
    """sin and cos of one frequency side by side (§3.5); the positions that are given begin with 1."""

    def _encode(self, positions, depth):
        frequencies = (10000.0 ** (-np.arange(0, depth, 2) / depth)).astype("float32")
        angles = (tf.cast(positions, tf.float32)[..., None] - 1) * frequencies
        pairs = tf.stack([tf.sin(angles), tf.cos(angles)], axis=-1)  # [1, length, depth / 2, 2]
        return tf.reshape(pairs, [1, -1, depth])


def theirs(i):
    """The id there of an id here; the change is its own inverse."""
    return ROWS[i] if i < len(ROWS) else i


def build(config, params):
    """Return OpenNMT-tf's model with new variables and the paper's dropout.

    Args:
        config: Of `layout.read_model`.
        params: OpenNMT-tf's parameters of training or inference.

    Raises:
        SystemExit: It has nothing that computes the same.
    """
    hparams = config["hparams"]
    for name, value in (
        ("norm", "post"), ("positions", "sinusoidal"), ("encoder_attention", "full"), ("activation", "relu"),
        ("num_decoder_layers", None), ("model", "transformer"),
    ):  # fmt: skip
        if hparams[name] != value:
            raise SystemExit(f"its model is built here for {name}={value} alone")
    if hparams["d_k"] or hparams["d_v"]:
        raise SystemExit("its heads share the model's width, so there are neither d_k nor d_v")

    def inputter():
        return opennmt.inputters.WordEmbedder(embedding_size=hparams["d_model"], num_oov_buckets=0)

    model = opennmt.models.Transformer(
        inputter(), inputter(), num_layers=hparams["num_layers"], num_units=hparams["d_model"],
        num_heads=hparams["num_heads"], ffn_inner_dim=hparams["d_ff"], mha_bias=False, pre_norm=False,
        position_encoder_class=Interleaved, share_embeddings=opennmt.models.EmbeddingsSharingLevel.ALL,
        output_layer_bias=False, dropout=hparams["dropout"], attention_dropout=0.0, ffn_dropout=0.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        # A line is an id's name: our id, so that what comes out is read as a number.
        path = os.path.join(folder, "vocabulary.txt")
        with open(path, "w", encoding="ascii") as file:
            file.writelines(f"{theirs(i)}\n" for i in range(config["vocab_size"]))
        model.initialize({"source_vocabulary": path, "target_vocabulary": path}, params=params)
        for module in model.submodules:
            if isinstance(module, tf.keras.layers.LayerNormalization):
                module.epsilon = EPSILON
        model.create_variables()
    return model


def assign(model, weights):
    """Gives a built model the weights of a file of `layout`."""
    seen = set()

    def take(variable, name):
        seen.add(variable.ref())
        variable.assign(weights[name])

    table = weights["embedding/table"]
    rows = np.arange(len(table))
    rows[: len(ROWS)] = ROWS
    embedding = model.features_inputter.embedding
    seen.add(embedding.ref())
    embedding.assign(table[rows])
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, layer in enumerate(stack.layers, 1):
            parts = {"self_attention": layer.self_attention, "feed_forward": layer.ffn}
            if name == "decoder":
                parts["cross_attention"] = layer.attention[0]
            for part, wrapper in parts.items():
                path = f"{name}/layer_{number}/{part}"
                norm = wrapper.output_layer_norm
                take(norm.gamma, f"{path}_residual/normalization/gamma")
                take(norm.beta, f"{path}_residual/normalization/beta")
                inner = wrapper.layer
                if part == "feed_forward":
                    for count, dense in ((1, inner.inner), (2, inner.outer)):
                        take(dense.kernel, f"{path}/kernel_{count}")
                        take(dense.bias, f"{path}/bias_{count}")
                else:
                    take(inner.linear_queries.kernel, f"{path}/query")
                    take(inner.linear_keys.kernel, f"{path}/key")
                    take(inner.linear_values.kernel, f"{path}/value")
                    take(inner.linear_output.kernel, f"{path}/output")
    forgotten = [variable.name for variable in model.trainable_variables if variable.ref() not in seen]
    if forgotten:
        raise RuntimeError(f"these variables are still random: {forgotten}")
