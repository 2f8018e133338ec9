"""Profile the operations of beam search with TensorFlow on a CPU, for the workload `forced` of `decode.py`.

    python benchmarks/decode_profile.py --json=docs/results/decode_profile.jsonl

The program translates the workload once before it starts the profiler, so the times exclude tracing and compilation.
The time of a kind of operation is the sum over all operations of that kind. Operations in different threads may
overlap, so the share of each kind in the total time is more meaningful than its time in seconds. Operations that XLA
has fused appear as one operation with a name from XLA. The rate of matrix products is their number of floating-point
operations, excluding those on padding, divided by their time.
"""

import collections
import re
import tempfile
from pathlib import Path

import decode
from command_line import CORES, Parser, add_row, print_table
from decode import protocol
from operations import profile

from keras_transformer.cli.arguments import run_command

KINDS = {
    "matrix products": "MatMul",
    "softmax, best symbols": "Softmax|Exp|exponential|Max|TopK|custom-call|Reduce|reduce",
    "moving, reshaping": "[Tt]ranspose|[Cc]oncat|[Ss]catter|[Gg]ather|copy|[Ss]lice|[Pp]ad|Cast",
}


def main(arguments):
    flags = Parser(__doc__).parse_args(arguments)
    rows = []
    protocol.limit_threads(CORES)
    with tempfile.TemporaryDirectory() as folder:
        for size in decode.SIZES:
            (Path(folder) / size).mkdir()
            workload = decode.forced(size, Path(folder) / size)
            for mode, precision in (("xla", "float32"), ("graph", "float32"), ("graph", "bfloat16")):
                rows.append(add_row(measure(workload, mode, precision), flags.json))
    print_table("decoding_profile", rows)


def measure(workload, mode, precision):
    """Profile a workload with XLA (mode "xla") or without (mode "graph"), and return its result row."""
    import run_keras_transformer as engine
    import tensorflow as tf

    from keras_transformer.training.hardware import device_rate

    threads = tf.config.threading.get_intra_op_parallelism_threads()
    translate = engine.decode({**workload.job(threads), "precision": precision, "mode": mode})
    translate()
    seconds, events = profile(translate)
    times = collections.Counter()
    for _, name, spent in events:
        times[re.sub(r"[.\d]+$", "", name)] += spent
    total = sum(times.values())
    kinds = collections.Counter()
    for name, spent in times.items():
        kinds[next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "all else")] += spent
    return {
        "benchmark": "decode_profile", "mode": mode, "precision": precision, "size": workload.size, "seconds": seconds,
        "shares": {kind: spent / total for kind, spent in kinds.most_common()},
        "products_seconds": kinds["matrix products"],
        "products_flops_per_second": product_flops(workload) / kinds["matrix products"],
        "device_flops_per_second": device_rate("float32"), "largest": dict(times.most_common(12)),
    }  # fmt: skip


def product_flops(workload):
    """Return the number of floating-point operations in all matrix products, excluding those on padding."""
    from keras_transformer.config.hparams import HParams

    vocab_size, hparams, _ = protocol.read_model(workload.model)
    h, rows, source = HParams(**hparams), len(workload.texts), decode.LENGTH + 1
    d, inner, beams = h.d_model, h.d_ff, decode.BEAM_SIZE
    encoder = 2 * rows * source * h.num_layers * (4 * d * d + 2 * d * inner + 2 * source * d)
    memory = 2 * rows * source * h.decoder_depth * 2 * d * d
    steps = (decode.LENGTH + 1) * beams - (beams - 1)  # the first step computes only one beam per sentence
    step = h.decoder_depth * (6 * d * d + 2 * d * inner + 2 * source * d) + vocab_size * d
    return encoder + memory + 2 * rows * steps * step


if __name__ == "__main__":
    run_command(main)
