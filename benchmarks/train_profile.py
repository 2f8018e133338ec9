"""Measure the time of each part of the model in a training update, and compare it with the limits of the machine.

    python benchmarks/train_profile.py --json=docs/results/train_profile.jsonl
    python benchmarks/train_profile.py --onednn=off     # TensorFlow's default on many processors

The benchmark profiles updates of the workload `fixed` of `train_step.py` with TensorFlow on a CPU. It uses graph mode,
in which the name of an operation contains the name of its layer. Operations run one after the other, each with all
threads.

Two rates form a roofline: the speed of a large matrix product, and the bandwidth of adding 1 to a large array. From
the shapes of inputs and outputs, the benchmark computes the floating-point operations of each matrix product, and the
bytes that each operation reads and writes. Dividing each number by its rate gives two durations per operation. The
longer one is the limit of the operation. Operations take longer than their limit if their arrays are small, or if they
compute exponentials or random numbers. They take less time than their limit if their arrays are in a cache.
"""

import collections
import math
import os
import re

from command_line import CORES, Parser, add_row, print_table, timed
from operations import profile
from train_step import PRECISIONS, SIZES

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import run_command

PARTS = {
    "loss": r"while|projected|loss|softmax_cross",
    "normalisation": "normalization",
    "dropout": "dropout",
    "attention": "attention",
    "feed-forward": "feed_forward",
    "optimizer": "adam|L2Loss",
    "embedding": "embedding|position",
}
"""{part: pattern for operation names}. The first match counts. The part "all else" has the remaining operations."""
REWRITTEN = re.compile(r".*/body/_\d+/|ArithmeticOptimizer/FoldTransposeIntoMatMul_")
"""Text that TensorFlow adds to operation names when it unrolls a loop or folds a transposition into a product."""
PRODUCTS = re.compile("MatMul")
UPDATES = 5


def main(arguments):
    parser = Parser(__doc__)
    parser.add_names("--sizes", SIZES, "tiny,base")
    parser.add_names("--precisions", PRECISIONS, ",".join(PRECISIONS))
    parser.add_argument("--onednn", choices=("on", "off"), default="on", help="oneDNN operations (default on)")
    flags = parser.parse_args(arguments)
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "01"[flags.onednn == "on"]
    load_keras()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(CORES)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rows = [
        add_row({**measure(size, precision), "onednn": flags.onednn}, flags.json)
        for size in flags.sizes
        for precision in flags.precisions
    ]
    print_table("training_profile", rows)


def measure(size, precision):
    """Profile updates of a model and return the result row."""
    update, work = update_of(SIZES[size], precision)
    for _ in range(3):
        update()
    seconds, events = profile(lambda: [update() for _ in range(UPDATES)])
    rates = product_rate(precision), copy_rate()
    parts = collections.defaultdict(lambda: dict.fromkeys(("seconds", "flops", "bytes", "limit"), 0.0))
    for name, kind, spent in events:
        if not name:  # events without a name cover the whole update
            continue
        flops, traffic = work.get(name) or work.get(REWRITTEN.sub("", name)) or (0, 0)
        part = next((part for part, pattern in PARTS.items() if re.search(pattern, name)), "all else")
        sums = parts[part, "products" if PRODUCTS.search(kind) else "other"]
        for key, value in zip(sums, (spent, flops, traffic, max(flops / rates[0], traffic / rates[1]))):
            sums[key] += value / UPDATES
    return {
        "benchmark": "train_profile", "size": size, "precision": precision, "milliseconds": 1e3 * seconds / UPDATES,
        "product_flops_per_second": rates[0], "copy_bytes_per_second": rates[1],
        "parts": [
            {"part": part, "operations": kind, **sums}
            for (part, kind), sums in sorted(parts.items(), key=lambda item: -item[1]["seconds"])
        ],
    }  # fmt: skip


def update_of(size, precision):
    """Build a model. Return (function that makes an update, {operation name: (floating-point operations, bytes)})."""
    import keras
    import tensorflow as tf
    from workload import training_batches

    import keras_transformer as kt
    from keras_transformer.training.options import PRECISIONS as POLICIES

    hparams = kt.hparams(size.preset)
    policy = keras.dtype_policies.get(POLICIES[precision])
    model = kt.Transformer.from_hparams(hparams, vocab_size=size.vocab_size, dtype=policy)
    model.compile(**kt.compile_arguments(hparams, jit_compile=False))
    corpus = {"lengths": size.length, "vocab_size": size.vocab_size, "batch_tokens": size.batch_tokens, "batches": 1}
    batch = keras.tree.map_structure(tf.convert_to_tensor, tuple(training_batches(corpus)[0]))
    model.train_on_batch(*batch)  # build all variables
    update = tf.function(model.train_step).get_concrete_function(batch)
    return lambda: update(*keras.tree.flatten(batch)), work_of(update.graph.as_graph_def(add_shapes=True))


def work_of(graph):
    """Return {name: (floating-point operations, bytes)} of all operations in a `GraphDef`, including its functions."""
    import tensorflow as tf

    work = {}
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        shapes = {
            node.name: [[dim.size for dim in shape.dim] for shape in node.attr["_output_shapes"].list.shape]
            for node in nodes
        }
        for node in nodes:
            inputs = []
            for source in node.input:  # format: "name", "name:1", or in functions "name:output:1"
                name, _, number = source.partition(":")
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
    """Return the number of elements of a shape, or 0 if a dimension is unknown."""
    return math.prod(max(length, 0) for length in shape)


def product_rate(precision):
    """Measure the floating-point operations per second of a large matrix product."""
    import tensorflow as tf

    side = 2048
    x = tf.ones((side, side), precision)
    return 2 * side**3 / minimum_seconds(lambda: tf.matmul(x, x))


def copy_rate():
    """Add 1 to a large array, and return the memory bandwidth in bytes per second, counting reads and writes."""
    import tensorflow as tf

    x = tf.ones(1 << 26)
    return 2 * 4 * (1 << 26) / minimum_seconds(lambda: x + 1.0)


def minimum_seconds(function):
    """Return the minimum time of ten calls after a warm-up call, to reduce the influence of other processes."""
    function()
    return min(timed(function)[1] for _ in range(10))


if __name__ == "__main__":
    run_command(main)
