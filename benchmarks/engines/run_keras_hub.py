"""Engine keras-hub: TransformerEncoder, TransformerDecoder and tied embedding, with Keras' Adam and `fit`.

The paper's attention projections have no biases, so the biases are fixed at 0. Dropout of attention weights is off, so
Keras uses its fused attention where possible. keras-hub has no loss for a Transformer, so this file defines one. The
loss consists of Keras operations and needs no one-hot targets.
"""

import os

import protocol

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras  # noqa: E402
import keras_hub  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import ops  # noqa: E402


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate schedule of equation 3."""

    def __init__(self, hparams):
        self.hparams = hparams

    def __call__(self, step):
        h, step = self.hparams, ops.cast(step, "float32") + 1.0
        warm = step * h["warmup_steps"] ** -1.5
        return h["learning_rate_scale"] * h["d_model"] ** -0.5 * ops.minimum(ops.rsqrt(step), warm)


class Loss(keras.losses.Loss):
    """Label-smoothed cross-entropy, averaged over tokens."""

    def __init__(self, smoothing):
        super().__init__(reduction="mean_with_sample_weight", dtype="float32")
        self.smoothing = smoothing

    def call(self, labels, logits):
        gold = ops.take_along_axis(logits, ops.cast(labels, "int32")[..., None], axis=-1)[..., 0]
        losses = ops.logsumexp(logits, axis=-1) - (1 - self.smoothing) * gold
        return losses - self.smoothing * ops.mean(logits, axis=-1) if self.smoothing else losses


class Positions(keras.layers.Layer):
    """Layer that scales embeddings and adds sinusoids. keras-hub's own layer orders the sinusoids differently."""

    def call(self, x):
        width = x.shape[-1]
        table = ops.cast(protocol.sinusoids(512, width), self.compute_dtype)
        return x * width**0.5 + table[: ops.shape(x)[1]]


def build(vocab_size, h):
    """Return (model, embedding, encoder layers, decoder layers). The model maps source and decoder inputs to logits."""
    embedding = keras_hub.layers.ReversibleEmbedding(vocab_size, h["d_model"], tie_weights=True)
    options = dict(intermediate_dim=h["d_ff"], num_heads=h["num_heads"], dropout=h["dropout"], layer_norm_epsilon=1e-6)
    source, inputs = (keras.Input((None,), dtype="int32") for _ in range(2))
    padding = ops.not_equal(source, 0)

    def embedded(ids):
        return keras.layers.Dropout(h["dropout"])(Positions()(embedding(ids)))

    memory, encoder, decoder = embedded(source), [], []
    for _ in range(h["num_layers"]):
        encoder.append(keras_hub.layers.TransformerEncoder(**options))
        memory = encoder[-1](memory, padding_mask=padding)
    states = embedded(inputs)
    for _ in range(h["num_layers"]):
        decoder.append(keras_hub.layers.TransformerDecoder(**options))
        states = decoder[-1](states, memory, encoder_padding_mask=padding)
    for layer in encoder + decoder:
        for attention in filter(None, (layer._self_attention_layer, getattr(layer, "_cross_attention_layer", None))):
            attention._dropout = attention._dropout_layer.rate = 0.0
    return keras.Model([source, inputs], embedding(states, reverse=True)), embedding, encoder, decoder


def assign(embedding, encoder, decoder, weights):
    """Copy the weights of this project's model, {variable name: array}, into the layers of keras-hub."""

    def assign_attention(attention, path):
        for name in ("query", "key", "value", "output"):
            dense = getattr(attention, f"_{name}_dense")
            dense.kernel.assign(weights[f"{path}/{name}"].reshape(dense.kernel.shape))
            dense.bias.trainable = False

    def assign_norm(norm, path):
        norm.gamma.assign(weights[f"{path}_residual/normalization/gamma"])
        norm.beta.assign(weights[f"{path}_residual/normalization/beta"])

    embedding.embeddings.assign(weights["embedding/table"])
    for name, stack in (("encoder", encoder), ("decoder", decoder)):
        for number, layer in enumerate(stack, 1):
            path = f"{name}/layer_{number}"
            for part in ("self_attention", "cross_attention")[: 1 + (name == "decoder")]:
                assign_attention(getattr(layer, f"_{part}_layer"), f"{path}/{part}")
                assign_norm(getattr(layer, f"_{part}_layer_norm"), f"{path}/{part}")
            assign_norm(layer._feedforward_layer_norm, f"{path}/feed_forward")
            denses = (layer._feedforward_intermediate_dense, layer._feedforward_output_dense)
            for count, dense in enumerate(denses, 1):
                dense.kernel.assign(weights[f"{path}/feed_forward/kernel_{count}"])
                dense.bias.assign(weights[f"{path}/feed_forward/bias_{count}"])


def train(job):
    protocol.limit_threads(job["threads"])
    if job["precision"] == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    vocab_size, h, weights = protocol.read_model(job["model"])
    model, *parts = build(vocab_size, h)
    assign(*parts, weights)
    adam = keras.optimizers.Adam(
        Schedule(h), beta_1=h["adam_beta_1"], beta_2=h["adam_beta_2"], epsilon=h["adam_epsilon"]
    )
    model.compile(optimizer=adam, loss=Loss(h["label_smoothing"]), jit_compile=job["mode"] == "xla")
    batches = protocol.read_batches(job["batches"])
    ids, mask = tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((None, None), tf.float32)
    done = 0

    def updates(count):
        nonlocal done
        first, done = done, done + count

        def generate():
            for number in range(first, first + count):
                source, inputs, labels = batches[number % len(batches)]
                yield (source, inputs), labels, (labels != 0).astype("float32")

        dataset = tf.data.Dataset.from_generator(generate, output_signature=((ids, ids), ids, mask)).prefetch(4)
        history = model.fit(dataset, steps_per_epoch=count, epochs=1, verbose=0)
        return history.history["loss"][0]

    return protocol.training(job, updates)


if __name__ == "__main__":
    protocol.serve(train=train)
