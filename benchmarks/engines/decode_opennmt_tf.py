"""OpenNMT-tf's process: its beam search with our weights and our ids."""

import layout
import numpy as np
import protocol
import tensorflow as tf
from opennmt_tf_model import assign, build, theirs


def make(job):
    protocol.bound_threads(job["threads"])
    config, weights = layout.read_model(job["model"])
    params = {
        "beam_width": job["beam_size"], "length_penalty": job["alpha"], "num_hypotheses": 1,
        "minimum_decoding_length": job["forced_length"] or 0, "maximum_decoding_length": job["forced_length"] or 250,
    }  # fmt: skip
    model = build(config, params)
    assign(model, weights)
    sources = [[theirs(i) for i in ids] + [theirs(1)] for ids in job["sources"]]

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)])
    def infer(ids, length):
        # The limit is the batch's: the parameter, usually a number, may be a tensor as well.
        model.params["maximum_decoding_length"] = job["forced_length"] or tf.reduce_max(length) + job["extra_length"]
        return model.infer({"ids": ids, "length": length})

    batches = []
    for rows in protocol.batches(sources):
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
    protocol.serve(make)
