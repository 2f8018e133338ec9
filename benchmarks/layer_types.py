"""Measure the time of the layer types in Table 1 of the paper by sequence length n and width d.

    python benchmarks/layer_types.py --json=docs/layer_types.jsonl --output=docs/layer_types.png
    python benchmarks/layer_types.py --from=docs/layer_types.jsonl      # print the tables of existing measurements
    taskset -c 0 python benchmarks/layer_types.py --clock=cpu           # for machines that run other work

Inputs are batches of random float32 numbers. The batches are small, but large enough that the overhead of an operation
does not dominate. The benchmark varies the length at one width, and the width at one length, up to 2^27 elements in the
largest tensor of a layer. It times all layers at all sizes once before it repeats any measurement, and reports minimum
times, which other programs affect least. An exponent is the slope of a least-squares fit of log time against log size,
over the three largest sizes. For the columns `counted`, the fit uses the number of operations in matrix products
instead of the time.
"""

import collections
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from command_line import CORES, Parser, timed

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import positive_int, run_command
from keras_transformer.utils.errors import UserError

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))
from pages.tables import first_per, table  # noqa: E402

HEADS, WINDOW, KERNEL, BATCH, FIT = 8, 32, 3, 4, 3
"""Number of heads (in layers with projections), window r, kernel width k, number of sequences per batch, and number of
sizes in the fit of an exponent."""
WIDTH, LENGTH = 128, 512
"""Width for measurements of different lengths, and length for measurements of different widths."""
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
LARGEST = 2**27
"""Maximum number of elements of a tensor. The largest tensor of additive attention has n² · d elements per sequence."""

Kind = collections.namedtuple("Kind", "name operations sequential path n d make flops elements")
"""Layer type: name, columns of Table 1, exponents of n and d in Table 1, and three functions. `make` maps d to
a Keras layer. `flops` maps (n, d) to the number of operations per sequence, and `elements` maps (n, d) to the number of
elements of the largest tensor per sequence."""


def main(arguments):
    parser = Parser(__doc__, "file for the rows, one JSON object per line")
    for flag, default in (
        ("--lengths", [128, 256, 512, 1024, 2048, 4096]),
        ("--widths", [32, 64, 128, 256, 512, 1024]),
    ):
        parser.add_argument(flag, type=sizes, default=default, help="comma-separated sizes (default %(default)s)")
    parser.add_argument(
        "--repeats", type=positive_int, default=9, help="number of timed calls per size (default %(default)s)"
    )
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="wall-clock time or CPU time (default wall)")
    parser.add_argument("--from", dest="source", metavar="FILE", help="file of rows to print instead of measuring")
    parser.add_argument("--output", metavar="FILE", help="PNG file for the plot")
    flags = parser.parse_args(arguments)
    if any(width % HEADS for width in flags.widths):
        raise UserError(f"--widths must be multiples of {HEADS} (the number of heads), got {flags.widths}.")
    rows = read(flags.source) if flags.source else measure(flags)
    if flags.json:
        Path(flags.json).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(tables(rows))
    if flags.output:
        draw(rows, flags.output)


def sizes(text):
    """Return the distinct integers of a comma-separated list in ascending order."""
    found = sorted({positive_int(part) for part in text.split(",")})
    if len(found) < 2:
        raise UserError(f"a list of sizes must have at least two different numbers, got {text!r}.")
    return found


def kinds():
    """Return a list of all layer types."""
    import keras
    from keras import ops

    from keras_transformer.layers.additive_attention import additive_attention
    from keras_transformer.layers.attention import MultiHeadAttention, scaled_dot_product_attention
    from keras_transformer.layers.restricted_attention import RestrictedAttention, restricted_attention

    class Bare(keras.layers.Layer):
        """Attention with one head and without projections, as in Table 1. Queries, keys and values equal the input."""

        def __init__(self, attention):
            super().__init__()
            self.attention = attention

        def call(self, x):
            x = x[:, None]
            return self.attention(x, x, x)[0][:, 0]

    class Whole(keras.layers.Layer):
        """Self-attention layer of this project, which includes four projections."""

        def __init__(self, attention):
            super().__init__()
            self.attention = attention

        def build(self, shape):
            self.attention.build(shape)

        def call(self, x):
            return self.attention(x, x)

    def full(d):
        return MultiHeadAttention(d, HEADS, d // HEADS, d // HEADS)

    def restricted(d):
        return RestrictedAttention(d, HEADS, d // HEADS, d // HEADS, window=WINDOW)

    def bare_restricted(d):
        return Bare(lambda q, k, v: restricted_attention(q, k, v, WINDOW))

    def bare_additive(d):
        score = ops.convert_to_tensor(np.full((1, d), d**-0.5, "float32"))
        return Bare(lambda q, k, v: additive_attention(q, k, v, score))

    linear = ("O(r·n·d)", "O(1)", "O(n/r)", 1, 1)
    quadratic = ("O(n²·d)", "O(1)", "O(1)", 2, 1)
    return [
        Kind("self-attention", *quadratic, lambda d: Bare(scaled_dot_product_attention),
             lambda n, d: 4 * n * n * d, lambda n, d: n * n),
        # The recurrent layer is an LSTM, as in GNMT, one of the paper's baselines.
        Kind("recurrent (LSTM)", "O(n·d²)", "O(n)", "O(n)", 1, 2,
             lambda d: keras.layers.LSTM(d, return_sequences=True),
             lambda n, d: 16 * n * d * d, lambda n, d: 4 * n * d),
        # Table 1 gives the path length of dilated convolutions. The path length of contiguous ones is O(n/k) (§4).
        Kind("convolutional", "O(k·n·d²)", "O(1)", "O(log_k n)", 1, 2,
             lambda d: keras.layers.Conv1D(d, KERNEL, padding="same"),
             lambda n, d: 2 * KERNEL * n * d * d, lambda n, d: n * d),
        Kind("self-attention (restricted)", *linear, bare_restricted,
             lambda n, d: 4 * d * restricted(d).pairs(n, n), lambda n, d: 3 * n * d),
        Kind("additive attention", *quadratic, bare_additive, lambda n, d: 4 * n * n * d,
             lambda n, d: n * n * d),
        Kind("whole layer, full", *quadratic, lambda d: Whole(full(d)),
             lambda n, d: full(d).flops(1, n, n), lambda n, d: HEADS * n * n),
        Kind("whole layer, restricted", *linear, lambda d: Whole(restricted(d)),
             lambda n, d: restricted(d).flops(1, n, n), lambda n, d: 3 * n * d),
    ]  # fmt: skip


def measure(flags):
    """Measure all layers and return a row for each layer, size and pass. Times are in seconds."""
    load_keras()
    import keras

    from keras_transformer.runs.provenance import command, git_revision
    from keras_transformer.utils.machine import describe_machine

    constants = {
        "backend": keras.backend.backend(), "machine": describe_machine(), "commit": git_revision(),
        "command": ["python", "benchmarks/" + command()[0], *command()[1:]], "repeats": flags.repeats, "fit": FIT,
        "clock": flags.clock, "cores": CORES, "batch": BATCH, "window": WINDOW,
        "kernel": KERNEL, "heads": HEADS,
    }  # fmt: skip
    sweeps = {(n, WIDTH): ["n"] for n in flags.lengths}
    for d in flags.widths:
        sweeps.setdefault((LENGTH, d), []).append("d")
    rows, runs = [], []
    for kind in kinds():
        for (n, d), axes in sweeps.items():
            if BATCH * kind.elements(n, d) > LARGEST:
                continue
            for name, run in passes(kind.make(d), n, d).items():
                run()  # compile before the timing
                runs.append((run, []))
                rows.append({
                    "layer": kind.name, "operations": kind.operations, "sequential": kind.sequential, "path": kind.path,
                    "exponents": {"n": kind.n, "d": kind.d}, "n": n, "d": d, "sweeps": axes, "pass": name,
                    "flops": BATCH * kind.flops(n, d),
                })  # fmt: skip
    for _ in range(flags.repeats):
        for run, seconds in runs:
            seconds.append(timed(run, clock=CLOCKS[flags.clock])[1])
    for row, (_, seconds) in zip(rows, runs):
        row |= {"seconds": min(seconds), "median_seconds": statistics.median(seconds), **constants}
    return rows


def passes(layer, n, d):
    """Return {"forward": function, "both": function}. The functions run the layer and wait for the result.

    "both" also runs the backward pass, which computes the gradients of the sum of squared outputs with respect to the
    input and all weights.
    """
    import keras
    from keras import ops

    x = ops.convert_to_tensor(np.random.default_rng(0).standard_normal((BATCH, n, d)), dtype="float32")
    layer.build((BATCH, n, d))
    weights = [variable.value for variable in layer.trainable_variables]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        def forward(x):
            return [layer(x)]

        def both(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(tf.square(layer(x)))
            return tape.gradient(loss, [x, *weights])

        def wait(function):
            def results(x):
                tensors = function(x)
                return tensors, tensors[0][0, 0, 0]  # reading this value blocks until it is computed

            graph = tf.function(results).get_concrete_function(x)
            return lambda: graph(x)[1].numpy()
    else:
        import jax

        rest = [variable.value for variable in layer.non_trainable_variables]

        def outputs(x, weights):
            return layer.stateless_call(weights, rest, x)[0]

        forward = jax.jit(outputs)
        both = jax.jit(jax.grad(lambda x, weights: ops.sum(ops.square(outputs(x, weights))), argnums=(0, 1)))

        def wait(function):
            return lambda: jax.block_until_ready(function(x, weights))

    return {"forward": wait(forward), "both": wait(both)}


def exponent(rows, layer, axis, name, value="seconds"):
    """Fit a power of n or d (`axis`) to the values in column `value`. Return the exponent as text.

    The fit uses the `FIT` largest sizes of one layer and one pass (`name`). Return None if there are fewer than two
    sizes.
    """
    points = sorted(
        (row[axis], row[value])
        for row in rows
        if (row["layer"], row["pass"]) == (layer, name) and axis in row["sweeps"]
    )
    sizes, values = np.log(np.array(points[-FIT:], dtype="float64")).T
    return f"{np.polyfit(sizes, values, 1)[0]:.2f}" if len(points) > 1 else None


def tables(rows):
    """Return two Markdown tables: measured exponents next to those of Table 1, and times at one length.

    The second table shows the times at the largest length for which all layers have measurements.
    """
    layers = first_per(rows, lambda row: row["layer"])
    columns = {"layer": "{layer}", "per layer": "{operations}", "sequential": "{sequential}", "path": "{path}"}
    for axis in "nd":
        columns |= {
            f"{axis}: Table 1": f"{{exponents[{axis}]}}",
            f"{axis}: counted": lambda row, axis=axis: exponent(rows, row["layer"], axis, "forward", "flops"),
            f"{axis}: forward": lambda row, axis=axis: exponent(rows, row["layer"], axis, "forward"),
            f"{axis}: total": lambda row, axis=axis: exponent(rows, row["layer"], axis, "both"),
        }
    measured = (
        {(row["n"], row["d"]) for row in rows if row["layer"] == layer["layer"] and "n" in row["sweeps"]}
        for layer in layers
    )
    n, d = max(set.intersection(*measured))
    at = {(row["layer"], row["pass"]): row for row in rows if (row["n"], row["d"]) == (n, d)}
    times = {
        "layer": "{layer}",
        f"forward ({unit(rows)}), n={n}, d={d}": lambda row: f"{1e3 * at[row['layer'], 'forward']['seconds']:.2f}",
        "forward and backward": lambda row: f"{1e3 * at[row['layer'], 'both']['seconds']:.2f}",
        "GFLOP/s of forward": lambda row: f"{row['flops'] / at[row['layer'], 'forward']['seconds'] / 1e9:.1f}",
    }
    there = [at[layer["layer"], "forward"] for layer in layers]
    return "\n\n".join([table(layers, columns), table(there, times)])


def unit(rows):
    """Return the unit of the times in the rows."""
    return {"wall": "milliseconds", "cpu": "milliseconds of CPU time"}[rows[0]["clock"]]


def draw(rows, path):
    """Plot the time of the forward pass over n and over d, on logarithmic axes, and save it as a PNG file.

    Raises:
        UserError: Matplotlib is not installed.
    """
    from keras_transformer.visualization.plots import new_figure, save

    figure = new_figure(10, 4.5)
    figure.set_layout_engine("constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, panel in zip("nd", axes):
        for layer in dict.fromkeys(row["layer"] for row in rows):
            points = sorted(
                (row[axis], 1e3 * row["seconds"])
                for row in rows
                if row["layer"] == layer and row["pass"] == "forward" and axis in row["sweeps"]
            )
            style = "--" if layer.startswith("whole") else "-"
            panel.loglog(*zip(*points), style, marker="o", markersize=4, base=2, label=layer)
        fixed = next(row for row in rows if axis in row["sweeps"])
        other = "d" if axis == "n" else "n"
        panel.set(xlabel=f"{axis} ({'length' if axis == 'n' else 'width'}), at {other} = {fixed[other]}")
        panel.set_yscale("log", base=10)
        panel.grid(alpha=0.3)
    axes[0].set(ylabel=f"{unit(rows)}, forward")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    save(figure, Path(path))


def read(path):
    """Return the rows of a file written with `--json`.

    Raises:
        UserError: The file cannot be read or does not contain rows of this benchmark.
    """
    fields = {"layer", "n", "d", "pass", "seconds", "sweeps", "flops", "clock"}
    try:
        rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
        complete = rows and all(fields <= row.keys() for row in rows)
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"--from must be a file with rows of this benchmark, got {path}: {error}.") from None
    if not complete:
        raise UserError(f"--from must be a file with rows of this benchmark, got {path}.")
    return rows


if __name__ == "__main__":
    run_command(main)
