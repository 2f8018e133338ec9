"""Table 1 of the paper measured: how the time of each kind of layer grows with the length n and the width d.

    python benchmarks/layer_types.py --json=docs/layer_types.jsonl --output=docs/layer_types.png
    python benchmarks/layer_types.py --from=docs/layer_types.jsonl      # prints the tables of those measurements again
    taskset -c 0 python benchmarks/layer_types.py --clock=cpu           # on a machine that is busy with other things

A few sequences at once, so that starting an operation weighs little; float32, random inputs. Lengths grow at one width
and widths at one length, up to where a layer's largest tensor would have more than 2^27 elements. Every layer is timed
once at every size before any is timed again, and the least of its times counts, so that other load on the machine falls
on all alike and little of it stays. An exponent is the slope of a least-squares line through the logarithms of a
layer's `--fit` largest sizes and of its times; "counted" is that of the operations of its matrix products.
"""

import collections
import importlib.util
import json
import os
import statistics
import time
from pathlib import Path

import numpy as np
from command_line import Parser, check_flags, number

from keras_transformer.backend.loading import load_keras
from keras_transformer.cli.arguments import run_command
from keras_transformer.utils.errors import UserError

HEADS = 8
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
LARGEST = 2**27
"""Elements of the largest tensor that is timed: of a sequence, additive attention has n² · d."""

Kind = collections.namedtuple("Kind", "name operations sequential path n d make flops elements")
"""A kind of layer: its name; Table 1's columns; Table 1's exponents of n and d; functions of (d, flags) that makes the
Keras layer, of (n, d, flags) that counts a sequence's operations, and of (n, d) that sizes its largest tensor."""


def main(arguments):
    parser = Parser(__doc__)
    parser.add_argument(
        "--lengths", type=_numbers, default=[128, 256, 512, 1024, 2048, 4096], help="n, comma-separated"
    )
    parser.add_argument("--widths", type=_numbers, default=[32, 64, 128, 256, 512, 1024], help="d, comma-separated")
    parser.add_argument("--width", type=number, default=128, help="d at which lengths grow (default %(default)s)")
    parser.add_argument("--length", type=number, default=512, help="n at which widths grow (default %(default)s)")
    parser.add_argument("--window", type=number, default=32, help="r of restricted attention (default %(default)s)")
    parser.add_argument("--kernel", type=number, default=3, help="k of the convolution (default %(default)s)")
    parser.add_argument("--batch", type=number, default=4, help="sequences (default %(default)s)")
    parser.add_argument("--repeats", type=number, default=9, help="times each is timed (default %(default)s)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="wall, or cpu: processor time of all threads")
    parser.add_argument("--fit", type=number, default=3, help="largest sizes that a slope is of (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="two small sizes, twice: shows that it runs, no more")
    parser.add_argument("--from", dest="source", metavar="FILE", help="rows to read in place of measuring")
    parser.add_argument("--json", metavar="FILE", help="file for the rows, one JSON object a line")
    parser.add_argument("--output", metavar="FILE", help="file for the plot, a PNG")
    flags = parser.parse_args(arguments)
    if flags.quick:
        flags.lengths, flags.widths, flags.width, flags.length = [32, 64], [16, 32], 16, 32
        flags.batch, flags.repeats = 1, 2
    check(flags)
    rows = read(flags.source) if flags.source else measure(flags)
    if flags.json:
        Path(flags.json).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(tables(rows))
    if flags.output:
        draw(rows, flags.output)


def check(flags):
    """Raise a `UserError` before anything is measured, where the end would fail."""
    for name, values in (("--lengths", flags.lengths), ("--widths", flags.widths)):
        if len(set(values)) < 2:
            raise UserError(f"{name} takes two different numbers or more: a slope needs them")
    if flags.fit < 2:
        raise UserError("--fit takes a whole number from 2 on: a slope needs two sizes")
    if any(width % HEADS for width in (*flags.widths, flags.width)):
        raise UserError(f"--widths and --width take multiples of {HEADS}, the heads of the whole layers")
    check_flags(flags)
    if flags.output and not importlib.util.find_spec("matplotlib"):
        raise UserError("--output draws with matplotlib, which is not installed: pip install matplotlib")


def kinds():
    """Return all kinds of layers; imports Keras."""
    import keras
    from keras import ops

    from keras_transformer.layers.additive_attention import additive_attention
    from keras_transformer.layers.attention import MultiHeadAttention, scaled_dot_product_attention
    from keras_transformer.layers.restricted_attention import RestrictedAttention, restricted_attention

    class Bare(keras.layers.Layer):
        """An attention without projections, as Table 1 counts it: one head, and the input is queries, keys, values."""

        def __init__(self, attention):
            super().__init__()
            self.attention = attention

        def call(self, x):
            x = x[:, None]
            return self.attention(x, x, x)[0][:, 0]

    class Whole(keras.layers.Layer):
        """Self-attention of this project, with its four projections."""

        def __init__(self, attention):
            super().__init__()
            self.attention = attention

        def build(self, shape):
            self.attention.build(shape)

        def call(self, x):
            return self.attention(x, x)

    def full(d):
        return MultiHeadAttention(d, HEADS, d // HEADS, d // HEADS)

    def restricted(d, flags):
        return RestrictedAttention(d, HEADS, d // HEADS, d // HEADS, window=flags.window)

    def bare_restricted(d, flags):
        return Bare(lambda q, k, v: restricted_attention(q, k, v, flags.window))

    def bare_additive(d, flags):
        score = ops.convert_to_tensor(np.full((1, d), d**-0.5, "float32"))
        return Bare(lambda q, k, v: additive_attention(q, k, v, score))

    linear = ("O(r·n·d)", "O(1)", "O(n/r)", 1, 1)
    quadratic = ("O(n²·d)", "O(1)", "O(1)", 2, 1)
    return [
        Kind("self-attention", *quadratic, lambda d, flags: Bare(scaled_dot_product_attention),
             lambda n, d, flags: 4 * n * n * d, lambda n, d: n * n),
        # LSTM is the recurrent layer of the models that the paper compares with (GNMT); its four gates are a factor.
        Kind("recurrent (LSTM)", "O(n·d²)", "O(n)", "O(n)", 1, 2,
             lambda d, flags: keras.layers.LSTM(d, return_sequences=True),
             lambda n, d, flags: 16 * n * d * d, lambda n, d: 4 * n * d),
        # A contiguous kernel; the path is that of dilated ones, with contiguous ones it is O(n/k) (§4).
        Kind("convolutional", "O(k·n·d²)", "O(1)", "O(log_k n)", 1, 2,
             lambda d, flags: keras.layers.Conv1D(d, flags.kernel, padding="same"),
             lambda n, d, flags: 2 * flags.kernel * n * d * d, lambda n, d: n * d),
        Kind("self-attention (restricted)", *linear, bare_restricted,
             lambda n, d, flags: 4 * d * restricted(d, flags).pairs(n, n), lambda n, d: 3 * n * d),
        Kind("additive attention", *quadratic, bare_additive, lambda n, d, flags: 4 * n * n * d,
             lambda n, d: n * n * d),
        Kind("whole layer, full", *quadratic, lambda d, flags: Whole(full(d)),
             lambda n, d, flags: full(d).flops(1, n, n), lambda n, d: HEADS * n * n),
        Kind("whole layer, restricted", *linear, lambda d, flags: Whole(restricted(d, flags)),
             lambda n, d, flags: restricted(d, flags).flops(1, n, n), lambda n, d: 3 * n * d),
    ]  # fmt: skip


def measure(flags):
    """Return the rows, one for each layer, size and pass; times are in seconds."""
    load_keras()
    import keras

    from keras_transformer.runs.manifest import command, git_revision, machine

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    constants = {
        "backend": keras.backend.backend(), "machine": machine(), "commit": git_revision(),
        "command": ["python", "benchmarks/" + command()[0], *command()[1:]], "repeats": flags.repeats, "fit": flags.fit,
        "clock": flags.clock, "cores": cores, "batch": flags.batch, "window": flags.window,
        "kernel": flags.kernel, "heads": HEADS,
    }  # fmt: skip
    sizes = {(n, flags.width): ["n"] for n in sorted(set(flags.lengths))}
    for d in sorted(set(flags.widths)):
        sizes.setdefault((flags.length, d), []).append("d")
    rows, timed = [], []
    for kind in kinds():
        for (n, d), sweeps in sizes.items():
            if flags.batch * kind.elements(n, d) > LARGEST:
                continue
            for name, run in passes(kind.make(d, flags), flags.batch, n, d).items():
                run()  # compiles
                timed.append((run, []))
                rows.append({
                    "layer": kind.name, "operations": kind.operations, "sequential": kind.sequential, "path": kind.path,
                    "exponents": {"n": kind.n, "d": kind.d}, "n": n, "d": d, "sweeps": sweeps, "pass": name,
                    "flops": flags.batch * kind.flops(n, d, flags),
                })  # fmt: skip
    clock = CLOCKS[flags.clock]
    for _ in range(flags.repeats):
        for run, seconds in timed:
            start = clock()
            run()
            seconds.append(clock() - start)
    for row, (_, seconds) in zip(rows, timed):
        row |= {"seconds": min(seconds), "median_seconds": statistics.median(seconds), **constants}
    return rows


def passes(layer, batch, n, d):
    """Return {"forward": f, "both": f}: functions without arguments that run the layer and wait for its end.

    "both" is forward and backward: the gradients of the sum of squared outputs, of the input and of each weight.
    """
    import keras
    from keras import ops

    x = ops.convert_to_tensor(np.random.default_rng(0).standard_normal((batch, n, d)), dtype="float32")
    layer.build((batch, n, d))
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
                return tensors, tensors[0][0, 0, 0]  # a number to fetch

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
    """Return the slope of log `value` over log n or log d (`axis`), of one layer's pass `name`, or NaN of one size."""
    points = sorted(
        (row[axis], row[value])
        for row in rows
        if (row["layer"], row["pass"]) == (layer, name) and axis in row["sweeps"]
    )
    sizes, values = np.log(np.array(points[-rows[0]["fit"] :], dtype="float64")).T
    return float(np.polyfit(sizes, values, 1)[0]) if len(set(sizes)) > 1 else float("nan")


def tables(rows):
    """Return two Markdown tables: the growth of times next to Table 1, and times at the longest common length."""
    first_of = {row["layer"]: row for row in reversed(rows)}
    heads = ["layer", "per layer", "sequential", "path"]
    for axis in "nd":
        heads += [f"{axis}: Table 1", "counted", "forward", "and backward"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for layer in dict.fromkeys(row["layer"] for row in rows):
        cells = [layer, *(first_of[layer][name] for name in ("operations", "sequential", "path"))]
        for axis in "nd":
            slopes = [exponent(rows, layer, axis, "forward", "flops")]
            slopes += [exponent(rows, layer, axis, name) for name in ("forward", "both")]
            cells += [first_of[layer]["exponents"][axis], *(f"{slope:.2f}" for slope in slopes)]
        lines.append(_line(cells))
    sizes = [
        {(row["n"], row["d"]) for row in rows if row["layer"] == layer and "n" in row["sweeps"]} for layer in first_of
    ]
    n, d = max(set.intersection(*sizes))
    heads = ["layer", f"{unit(rows)} forward, n={n}, d={d}", "forward and backward", "GFLOP/s forward"]
    lines += ["", _line(heads), _line(["---"] * len(heads))]
    for layer in dict.fromkeys(row["layer"] for row in rows):
        forward, both = (
            next(row for row in rows if (row["layer"], row["n"], row["d"], row["pass"]) == (layer, n, d, name))
            for name in ("forward", "both")
        )
        rate = forward["flops"] / forward["seconds"] / 1e9
        lines.append(_line([layer, *(f"{1e3 * row['seconds']:.2f}" for row in (forward, both)), f"{rate:.1f}"]))
    return "\n".join(lines)


def unit(rows):
    """Return what the times of rows are called."""
    return {"wall": "milliseconds", "cpu": "milliseconds of processor time"}[rows[0]["clock"]]


def draw(rows, path):
    """Draw time over n and over d, forward, on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 5), sharey=True, layout="constrained")
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
    figure.savefig(path, dpi=100, format="png")


def read(path):
    """Return the rows of a file that `--json` wrote.

    Raises:
        UserError: It cannot be read, or holds no such rows.
    """
    try:
        rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
        complete = all(
            {"layer", "n", "d", "pass", "seconds", "sweeps", "flops", "fit", "clock"} <= row.keys() for row in rows
        )
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"--from={path} cannot be read: {error}") from None
    if not rows or not complete:
        raise UserError(f"--from={path} holds no rows of this benchmark")
    return rows


def _line(cells):
    return "| " + " | ".join(map(str, cells)) + " |"


def _numbers(text):
    return [number(part) for part in text.split(",")]


if __name__ == "__main__":
    run_command(main)
