"""Where the time of an update goes, by part of the model, and how close to the machine's limits that is.

    python benchmarks/train_profile.py --json=docs/results/train_profile.jsonl
    python benchmarks/train_profile.py --onednn=off     # as TensorFlow computes by itself on many processors

It profiles updates of `train_step.py`'s workload `fixed` on TensorFlow's CPU in graph mode: there each operation has a
name, that of the layer that it is in. Two limits (a roofline): the rate of a large matrix product, and the rate at
which an addition of one to a large array reads and writes. What counts are operations of matrix products and bytes of
inputs and outputs, as their shapes say; an operation's limit is the longer of the two times, and it takes longer where
its arrays are small, where it computes an exponential or a random number, and shorter where they are in a cache.
Operations run one after the other, each with all threads.
"""

import collections
import math
import os
import re
import time

from command_line import Parser, add_row, check_flags, names, print_table
from operations import profiled
from train_step import PRECISIONS, SIZES

from keras_transformer.backend.loading import load_keras

PARTS = {
    "loss": r"while|projected|loss|softmax_cross",
    "normalisation": "normalization",
    "dropout": "dropout",
    "attention": "attention",
    "feed-forward": "feed_forward",
    "optimizer": "adam|L2Loss",
    "embedding": "embedding|position",
}
"""Patterns of operations' names, the first that is found; "all else" has none."""
REWRITTEN = re.compile(r".*/body/_\d+/|ArithmeticOptimizer/FoldTransposeIntoMatMul_")
"""What TensorFlow adds to an operation's name where it takes apart a loop, or a transposition out of a product."""
PRODUCTS = re.compile("MatMul")
UPDATES = 5


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument("--sizes", default="tiny,base", help=f"of {', '.join(SIZES)} (default %(default)s)")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="comma-separated (default %(default)s)")
    parser.add_argument("--onednn", choices=("on", "off"), default="on", help="TensorFlow's products (default on)")
    parser.add_json()
    flags = parser.parse_args(arguments)
    sizes, precisions = names("size", flags.sizes, SIZES), names("precision", flags.precisions, PRECISIONS)
    check_flags(flags)
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "01"[flags.onednn == "on"]
    load_keras()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(len(os.sched_getaffinity(0)))
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rows = []
    for size in sizes:
        for precision in precisions:
            rows.append(add_row({**record(size, precision), "onednn": flags.onednn}, flags.json))
    print_table("training_profile", rows)


def record(size, precision):
    """Return the record of a model of a size."""
    update, work = step_of(SIZES[size], precision)
    for _ in range(3):
        update()
    seconds, events = profiled(lambda: [update() for _ in range(UPDATES)])
    rates = product_rate(precision), copy_rate()
    parts = collections.defaultdict(lambda: dict.fromkeys(("seconds", "flops", "bytes", "limit"), 0.0))
    for name, kind, spent in events:
        if not name:  # the whole update
            continue
        flops, moved = work.get(name) or work.get(REWRITTEN.sub("", name)) or (0, 0)
        part = next((part for part, pattern in PARTS.items() if re.search(pattern, name)), "all else")
        of_part = parts[part, "products" if PRODUCTS.search(kind) else "other"]
        for key, value in zip(of_part, (spent, flops, moved, max(flops / rates[0], moved / rates[1]))):
            of_part[key] += value / UPDATES
    return {
        "benchmark": "train_profile", "size": size, "precision": precision, "milliseconds": 1e3 * seconds / UPDATES,
        "product_flops_per_second": rates[0], "copy_bytes_per_second": rates[1],
        "parts": [
            {"part": part, "operations": kind, **of_part}
            for (part, kind), of_part in sorted(parts.items(), key=lambda item: -item[1]["seconds"])
        ],
    }  # fmt: skip


def step_of(size, precision):
    """Return a function that makes an update, and {operation's name: (floating point operations, bytes)}."""
    import keras
    import tensorflow as tf
    from engines.workload import training_batches

    import keras_transformer as kt
    from keras_transformer.training.options import PRECISIONS as POLICIES

    hparams = kt.hparams(size.preset)
    policy = keras.dtype_policies.get(POLICIES[precision])
    model = kt.Transformer.from_hparams(hparams, vocab_size=size.vocab_size, dtype=policy)
    model.compile(**kt.compile_arguments(hparams, jit_compile=False))
    corpus = {"lengths": size.length, "vocab_size": size.vocab_size, "batch_tokens": size.batch_tokens, "batches": 1}
    batch = keras.tree.map_structure(tf.convert_to_tensor, tuple(training_batches(corpus)[0]))
    model.train_on_batch(*batch)  # builds all
    update = tf.function(model.train_step).get_concrete_function(batch)
    return lambda: update(*keras.tree.flatten(batch)), work_of(update.graph.as_graph_def(add_shapes=True))


def work_of(graph):
    """Return {name: (floating point operations, bytes)} of the operations of a `GraphDef`, functions included."""
    import tensorflow as tf

    work = {}
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        shapes = {
            node.name: [[dim.size for dim in shape.dim] for shape in node.attr["_output_shapes"].list.shape]
            for node in nodes
        }
        for node in nodes:
            inputs = []
            for place in node.input:  # "name", "name:1", or in functions "name:output:1"
                name, _, number = place.partition(":")
                inputs += shapes.get(name, [])[int(number.rpartition(":")[2] or 0) :][:1]
            numbers = sum(map(elements, inputs + shapes[node.name]))
            kind = next((node.attr[key].type for key in ("T", "dtype", "DstT") if key in node.attr), 0)
            flops = 0
            if PRODUCTS.search(node.op) and inputs:
                transposed = node.attr["transpose_a"].b or node.attr["adj_x"].b
                flops = 2 * elements(shapes[node.name][0]) * inputs[0][-2 if transposed else -1]
            work[node.name] = flops, numbers * (tf.dtypes.as_dtype(kind).size if kind else 4)
    return work


def elements(shape):
    """Return how many there are, 0 where a length is not known."""
    return math.prod(max(length, 0) for length in shape)


def product_rate(precision):
    """Return the floating point operations a second of a large matrix product."""
    import tensorflow as tf

    side = 2048
    x = tf.ones((side, side), precision)
    return 2 * side**3 / best_time(lambda: tf.matmul(x, x))


def copy_rate():
    """Return the bytes a second that are read and written where one is added to a large array."""
    import tensorflow as tf

    x = tf.ones(1 << 26)
    return 2 * 4 * (1 << 26) / best_time(lambda: x + 1.0)


def best_time(function):
    """Return the minimum time of several calls, in seconds, since other processes only make a call slower."""
    function()
    times = []
    for _ in range(10):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    from keras_transformer.cli.arguments import run_command

    run_command(main)
