"""Where the time of `decode.py`'s workload `forced` goes in this project, by kind of operation, on TensorFlow's CPU.

    python benchmarks/decode_profile.py --json=docs/results/decode_profile.jsonl

The batch is translated once before it is profiled, so that nothing is traced or compiled. Times are those of
operations, summed; with several threads they may overlap, so that shares, not seconds, are what counts. Operations that
XLA fused count by the name that it gives them. The rate is that of the matrix products' floating point operations.
"""

import collections
import os
import re
import sys
import tempfile
from pathlib import Path

import decode
from command_line import Parser, add_row, check_flags, print_table
from engines.protocol import bound_threads
from operations import profiled

sys.path.insert(0, str(Path(__file__).parent / "engines"))
KINDS = {
    "matrix products": "MatMul",
    "softmax, best symbols": "Softmax|Exp|exponential|Max|TopK|custom-call|Reduce|reduce",
    "moving, reshaping": "[Tt]ranspose|[Cc]oncat|[Ss]catter|[Gg]ather|copy|[Ss]lice|[Pp]ad|Cast",
}


def main(arguments):
    parser = Parser(__doc__)
    parser.add_json()
    flags = parser.parse_args(arguments)
    check_flags(flags)
    rows = []
    bound_threads(len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as folder:
        for size in decode.SIZES:
            (Path(folder) / size).mkdir()
            workload = decode.forced(None, size, Path(folder) / size)
            for mode, precision in (("xla", "float32"), ("graph", "float32"), ("graph", "bfloat16")):
                row = record(workload, mode, precision)
                rows.append(add_row(row, flags.json))
    print_table("decoding_profile", rows)


def record(workload, mode, precision):
    """Return the record of one way to translate the workload."""
    import decode_keras_transformer as engine
    import tensorflow as tf

    from keras_transformer.training.hardware import device_rate

    threads = tf.config.threading.get_intra_op_parallelism_threads()
    translate = engine.make({**workload.job(threads), "precision": precision, "mode": mode})
    translate()
    seconds, events = profiled(translate)
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
        "products_flops_per_second": products(workload) / kinds["matrix products"],
        "device_flops_per_second": device_rate(), "largest": dict(times.most_common(12)),
    }  # fmt: skip


def products(workload):
    """Return the floating point operations of the workload's matrix products, without padding and past tokens."""
    from engines.layout import read_model

    from keras_transformer.config.hparams import HParams

    config, _ = read_model(workload.model)
    h, rows, source = HParams(**config["hparams"]), len(workload.texts), decode.LENGTH + 1
    d, inner, beams = h.d_model, h.d_ff, workload.beam_size
    encoder = 2 * rows * source * h.num_layers * (4 * d * d + 2 * d * inner + 2 * source * d)
    memory = 2 * rows * source * h.decoder_depth * 2 * d * d
    steps = (decode.LENGTH + 1) * beams - (beams - 1)  # the first has one beam
    a_step = h.decoder_depth * (6 * d * d + 2 * d * inner + 2 * source * d) + config["vocab_size"] * d
    return encoder + memory + 2 * rows * steps * a_step


if __name__ == "__main__":
    from keras_transformer.cli.arguments import run_command

    run_command(main)
