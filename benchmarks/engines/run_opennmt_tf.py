"""Benchmark engine OpenNMT-tf: its Transformer with the weights of this project, its training step and beam search.

The model is post-norm, with one embedding for source, target and output, and without biases in attention and output
projection. This file changes the ε of layer normalization, the ids of BOS and EOS, and the sinusoids to match this
project. One difference remains: OpenNMT-tf distributes the probability of label smoothing over all tokens except the
label, while this project distributes it over all tokens.
"""

import itertools
import os
import tempfile

import numpy as np
import protocol

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import opennmt  # noqa: E402
import tensorflow as tf  # noqa: E402

ROWS = [0, 2, 1]
"""Ids of PAD, BOS and EOS in this project. In OpenNMT-tf, their ids are 0, 1 and 2. All other tokens have the same ids
in this project and in OpenNMT-tf."""


class Interleaved(opennmt.layers.PositionEncoder):
    """Sinusoids of §3.5, in which the sine and cosine of a frequency are adjacent. Positions start at 1."""

    def _encode(self, positions, depth):
        frequencies = (10000.0 ** (-np.arange(0, depth, 2) / depth)).astype("float32")
        angles = (tf.cast(positions, tf.float32)[..., None] - 1) * frequencies
        pairs = tf.stack([tf.sin(angles), tf.cos(angles)], axis=-1)  # [1, length, depth / 2, 2]
        return tf.reshape(pairs, [1, -1, depth])


class Schedule(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate schedule of equation 3."""

    def __init__(self, hparams):
        self.hparams = hparams

    def __call__(self, step):
        h, step = self.hparams, tf.cast(step, tf.float32) + 1.0
        warm = step * h["warmup_steps"] ** -1.5
        return h["learning_rate_scale"] * h["d_model"] ** -0.5 * tf.minimum(tf.math.rsqrt(step), warm)


def swapped(ids):
    """Convert ids of this project to ids of OpenNMT-tf, or vice versa. The mapping is its own inverse."""
    return np.where(ids < len(ROWS), np.take(ROWS, ids, mode="clip"), ids).astype("int32")


def build(vocab_size, hparams, params):
    """Return a new OpenNMT-tf model with dropout only where the paper applies it. `params` are OpenNMT-tf's parameters.

    Raises:
        SystemExit: OpenNMT-tf has no equivalent model.
    """
    for name, value in (
        ("norm", "post"), ("positions", "sinusoidal"), ("encoder_attention", "full"), ("activation", "relu"),
        ("num_decoder_layers", None), ("model", "transformer"), ("d_k", None), ("d_v", None),
    ):  # fmt: skip
        if (hparams[name] or None) != value:
            raise SystemExit(f"{name} must be {value} for OpenNMT-tf, got {hparams[name]}.")

    def inputter():
        return opennmt.inputters.WordEmbedder(embedding_size=hparams["d_model"], num_oov_buckets=0)

    model = opennmt.models.Transformer(
        inputter(), inputter(), num_layers=hparams["num_layers"], num_units=hparams["d_model"],
        num_heads=hparams["num_heads"], ffn_inner_dim=hparams["d_ff"], mha_bias=False, pre_norm=False,
        position_encoder_class=Interleaved, share_embeddings=opennmt.models.EmbeddingsSharingLevel.ALL,
        output_layer_bias=False, dropout=hparams["dropout"], attention_dropout=0.0, ffn_dropout=0.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        # The vocabulary contains the ids of this project as text, so that output tokens can be parsed as ids.
        path = os.path.join(folder, "vocabulary.txt")
        with open(path, "w", encoding="ascii") as file:
            file.writelines(f"{i}\n" for i in swapped(np.arange(vocab_size)))
        model.initialize({"source_vocabulary": path, "target_vocabulary": path}, params=params)
        for module in model.submodules:
            if isinstance(module, tf.keras.layers.LayerNormalization):
                module.epsilon = 1e-6
        model.create_variables()
    return model


def assign(model, weights):
    """Copy the weights of this project into a model.

    Raises:
        RuntimeError: A variable got no weights.
    """
    seen = set()

    def take(variable, value):
        seen.add(variable.ref())
        variable.assign(value)

    table = weights["embedding/table"]
    take(model.features_inputter.embedding, table[swapped(np.arange(len(table)))])
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, layer in enumerate(stack.layers, 1):
            parts = {"self_attention": layer.self_attention, "feed_forward": layer.ffn}
            if name == "decoder":
                parts["cross_attention"] = layer.attention[0]
            for part, wrapper in parts.items():
                path = f"{name}/layer_{number}/{part}"
                norm, inner = wrapper.output_layer_norm, wrapper.layer
                variables = {"_residual/normalization/gamma": norm.gamma, "_residual/normalization/beta": norm.beta}
                if part == "feed_forward":
                    for count, dense in ((1, inner.inner), (2, inner.outer)):
                        variables |= {f"/kernel_{count}": dense.kernel, f"/bias_{count}": dense.bias}
                else:
                    names = {"query": "queries", "key": "keys", "value": "values", "output": "output"}
                    variables |= {f"/{own}": getattr(inner, f"linear_{their}").kernel for own, their in names.items()}
                for suffix, variable in variables.items():
                    take(variable, weights[path + suffix])
    if missing := [variable.name for variable in model.trainable_variables if variable.ref() not in seen]:
        raise RuntimeError(f"variables without weights: {missing}")


def train(job):
    protocol.limit_threads(job["threads"])
    vocab_size, h, weights = protocol.read_model(job["model"])
    model = build(vocab_size, h, {"label_smoothing": h["label_smoothing"], "average_loss_in_time": True})
    assign(model, weights)
    model.set_jit_compile(job["mode"] == "xla")
    optimizer = opennmt.optimizers.make_optimizer(
        "Adam", Schedule(h), beta_1=h["adam_beta_1"], beta_2=h["adam_beta_2"], epsilon=h["adam_epsilon"]
    )
    batches = itertools.cycle([example(*batch) for batch in protocol.read_batches(job["batches"])])
    ids, lengths = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
    signature = [{"ids": ids, "length": lengths}, {"ids": ids, "ids_out": ids, "length": lengths}]

    @tf.function(input_signature=None if job["mode"] == "xla" else signature)
    def update(features, labels):
        loss, gradients = model.compute_gradients(features, labels, optimizer)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights))
        return loss

    def updates(count):
        for batch in itertools.islice(batches, count):
            loss = update(*batch)
        return float(loss)

    return protocol.training(job, updates)


def example(source, inputs, labels):
    """Convert a batch of this project's ids to features and labels of OpenNMT-tf."""

    def length(array):
        return tf.constant((array != 0).sum(axis=1).astype("int32"))

    def ids(array):
        return tf.constant(swapped(array))

    return {"ids": ids(source), "length": length(source)}, {
        "ids": ids(inputs), "ids_out": ids(labels), "length": length(labels)
    }  # fmt: skip


def decode(job):
    protocol.limit_threads(job["threads"])
    vocab_size, hparams, weights = protocol.read_model(job["model"])
    params = {
        "beam_width": job["beam_size"], "length_penalty": job["alpha"], "num_hypotheses": 1,
        "minimum_decoding_length": job["forced_length"] or 0, "maximum_decoding_length": job["forced_length"] or 250,
    }  # fmt: skip
    model = build(vocab_size, hparams, params)
    assign(model, weights)
    sources = [swapped(np.array([*ids, 1])).tolist() for ids in job["sources"]]  # EOS is 1 in this project

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)])
    def infer(ids, length):
        # OpenNMT-tf accepts a tensor as the maximum length, so the maximum can depend on the batch.
        model.params["maximum_decoding_length"] = job["forced_length"] or tf.reduce_max(length) + job["extra_length"]
        return model.infer({"ids": ids, "length": length})

    batches = []
    for rows in protocol.batches_of(sources):
        length = np.array([len(sources[i]) for i in rows], "int32")
        ids = np.zeros((len(rows), length.max()), "int32")
        for row, i in zip(ids, rows):
            row[: len(sources[i])] = sources[i]
        batches.append((rows, ids, length))

    def translate():
        outputs, scores = [None] * len(sources), [None] * len(sources)
        for rows, ids, length in batches:
            found = {name: value.numpy() for name, value in infer(ids, length).items() if name != "alignment"}
            for i, tokens, count, score in zip(rows, found["tokens"], found["length"], found["log_probs"]):
                outputs[i] = [int(token) for token in tokens[0][: count[0]]]
                scores[i] = float(score[0])
        return {"outputs": outputs, "scores": scores}

    return translate


if __name__ == "__main__":
    protocol.serve(train=train, decode=decode)
