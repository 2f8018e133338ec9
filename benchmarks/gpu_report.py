"""Measure training and decoding with JAX on one accelerator: speed, memory and compiled program.

The benchmark needs no network connection.

    KERAS_BACKEND=jax python benchmarks/gpu_report.py --raw_dir=multi30k --json=docs/results/gpu.jsonl
    KERAS_BACKEND=jax python benchmarks/gpu_report.py --miniature

Workloads:

- `rate`: rate of products of two large square matrices in bfloat16 and float32, in TFLOP/s.
- `train`: speed of `base` and `big` in bfloat16 with Keras' `fit` on `TokenBatches` of random tokens. Sentence lengths
  are as in WMT ("wmt") or all equal ("fixed"). `utilization` is the rate of the model's matrix products, including
  padding, as a share of `rate`.
- `phases`: time in seconds of the forward pass alone and of the whole update, for one batch on the device.
- `program`: number of matrix products of each data type, number of host transfers and number of copies in an update of
  `base`.
- `decode`: speed of beam search with `base` in bfloat16. Weights are random, and all outputs have the same length.
- `learn`: BLEU after 1,500 updates of `tiny` on Multi30k or, without `--raw_dir`, of `toy` on `toy_ende`.

Each workload runs in a separate process, so that its peak memory excludes the other workloads. `--page` writes all
results as tables to a Markdown page.
"""

import json
import re
import sys
import tempfile
import time
from pathlib import Path

from command_line import Parser, add_row, in_process, timed

from keras_transformer.cli.arguments import run_command

sys.path.insert(0, str(Path(__file__).parent / "engines"))

VOCAB_SIZE = 37_000
WORKLOADS = ("rate", "train", "phases", "program", "decode", "learn")
LENGTHS = ("wmt", "fixed")
"""Sentence lengths for `train`."""
FULL = {
    "side": 8192, "models": ("base", "big"), "base": {}, "big": {}, "batch_tokens": 25_000, "length": 32, "updates": 60,
    "max_shapes": 8, "vocab_size": VOCAB_SIZE, "sentences": 512, "output_length": 30, "train_steps": 1500,
}  # fmt: skip
"""Default settings, without `--miniature`: sizes of matrices, models, batches and outputs, and numbers of updates."""
TINY = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2}
MINIATURE = {
    "side": 128, "models": ("base", "big"), "base": TINY, "big": TINY, "batch_tokens": 256, "length": 8, "updates": 3,
    "max_shapes": 2, "vocab_size": 60, "sentences": 4, "output_length": 5, "train_steps": 2,
}  # fmt: skip
"""Settings for `--miniature`. With these sizes, the program takes about a minute on a CPU."""


def main(arguments):
    parser = Parser(__doc__)
    parser.add_names("--workloads", WORKLOADS, list(WORKLOADS))
    parser.add_names("--lengths", LENGTHS, list(LENGTHS), "sentence lengths for `train`, default all")
    parser.add_argument("--miniature", action="store_true", help="tiny models, to check the program on a CPU")
    parser.add_argument("--page", metavar="FILE", help="Markdown file for the tables of the report")
    parser.add_argument("--raw_dir", help="folder of Multi30k (default: train on toy_ende instead)")
    flags = parser.parse_args(arguments)
    sizes, rows = MINIATURE if flags.miniature else FULL, []
    for workload in flags.workloads:
        for case in cases(workload, sizes, flags.lengths):
            began = time.monotonic()
            if workload == "learn":
                case = (flags,)
            figures = in_process(globals()[workload], sizes, *case)
            row = {"benchmark": "gpu_report", "miniature": flags.miniature, "workload": workload, **figures}
            rows.append(add_row({**row, "total_seconds": time.monotonic() - began}, flags.json))
            print(json.dumps(rows[-1]), flush=True)
    if flags.page:
        Path(flags.page).write_text(page(rows), encoding="utf-8")


def cases(workload, sizes, lengths):
    """Return a list of argument tuples, one per call of a workload's function. The tuples do not contain `sizes`."""
    if workload == "train":
        return [(name, kind) for name in sizes["models"] for kind in lengths]
    if workload == "phases":
        return [(name,) for name in sizes["models"]]
    return [()]


def rate(sizes):
    """Measure the rate of matrix products in TFLOP/s."""
    import jax
    import jax.numpy as jnp

    side, products = sizes["side"], 20
    figures = {"device": jax.devices()[0].device_kind, "side": side}
    for dtype in ("bfloat16", "float32"):
        x = jnp.full((side, side), 1 / side, dtype)  # all powers of x are equal, so values neither grow nor vanish
        power = jax.jit(lambda x: jax.lax.fori_loop(0, products, lambda _, y: y @ x, x))
        power(x).block_until_ready()
        seconds = min(timed(lambda power=power, x=x: power(x).block_until_ready())[1] for _ in range(3))
        figures[f"{dtype}_tflops"] = 2 * side**3 * products / seconds / 1e12
    return figures


def train(sizes, name, lengths):
    """Measure the speed and memory use of training with a preset."""
    from workload import training_batches

    from keras_transformer.data.batch_plan import BatchPlan
    from keras_transformer.data.token_batches import TokenBatches
    from keras_transformer.training.compile_ahead import CompileAhead
    from keras_transformer.training.hardware import peak_memory

    model, hparams = compiled_model(sizes, name)
    updates = sizes["updates"]
    corpus = {"batch_tokens": hparams.batch_tokens, "vocab_size": sizes["vocab_size"], "batches": 2 * updates}
    batches = training_batches({**corpus, "lengths": lengths if lengths == "wmt" else sizes["length"]})
    plan = BatchPlan(batches.split.index, hparams.batch_tokens, max_length=256, max_shapes=sizes["max_shapes"])
    batches = TokenBatches(batches.split, plan)
    epoch = batches.batches_per_epoch
    began = time.monotonic()
    with CompileAhead(0, batches, epoch) as ahead:
        model.fit(batches, steps_per_epoch=epoch, verbose=0, callbacks=[ahead])  # compile all shapes before timing
    first = time.monotonic() - began
    _, seconds = timed(lambda: model.fit(batches, steps_per_epoch=updates, verbose=0))
    timed_updates = range(epoch, epoch + updates)
    return {
        "hparams": name, "lengths": lengths, "updates": updates, "batch_tokens": hparams.batch_tokens,
        "shapes": len(plan.shapes), "first_epoch_seconds": first, "seconds_per_update": seconds / updates,
        "target_tokens_per_second": sum(plan.batch(index).target_tokens for index in timed_updates) / seconds,
        "padding": 1 - plan.real_share("shape"),
        "products_tflops": sum(model.update_flops(*batches.shape(i)) for i in timed_updates) / seconds / 1e12,
        **peak_memory(),
    }  # fmt: skip


def phases(sizes, name):
    """Measure the time in seconds of a forward pass and of a whole update. The batch is already on the device."""
    import jax

    model, hparams = compiled_model(sizes, name)
    state, data = example(model, hparams, sizes["length"])
    forward, update = jax.jit(model.test_step), jax.jit(model.train_step)
    runs = {
        "forward_seconds": lambda: forward((state[0], state[1], state[3]), data),
        "update_seconds": lambda: update(state, data),
    }
    figures = {"hparams": name, "batch_tokens": hparams.batch_tokens, "length": sizes["length"]}
    for phase, function in runs.items():
        jax.block_until_ready(function())
        figures[phase] = min(timed(lambda function=function: jax.block_until_ready(function()))[1] for _ in range(5))
    return figures


def program(sizes):
    """Count the operations of an update of `base` in bfloat16.

    `products` counts the matrix products before XLA's optimizations. The counts of other operations are from the
    compiled program.
    """
    import jax

    model, hparams = compiled_model(sizes, "base")
    lowered = jax.jit(model.train_step, donate_argnums=0).lower(*example(model, hparams, sizes["length"]))
    compiled, products = lowered.compile(), {}
    for line in lowered.as_text().splitlines():
        if match := re.search(r"stablehlo\.dot_general.*: \(tensor<[^>]*x(\w+)>, tensor<[^>]*x(\w+)>\)", line):
            kind = "×".join(sorted({*match.groups()}))
            products[kind] = products.get(kind, 0) + 1
    text, cost = compiled.as_text(), compiled.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    memory = compiled.memory_analysis()
    return {
        "hparams": "base", "batch_tokens": hparams.batch_tokens, "length": sizes["length"], "products": products,
        "host_transfers": len(re.findall(r"= .*(?:\binfeed|\boutfeed|\bsend|\brecv|callback)", text)),
        "copies": len(re.findall(r" copy\(", text)), "transposes": len(re.findall(r" transpose\(", text)),
        "fusions": len(re.findall(r" fusion\(", text)), "flops": cost.get("flops"),
        "model_flops": model.update_flops(hparams.batch_tokens // sizes["length"], sizes["length"], sizes["length"]),
        "bytes_accessed": cost.get("bytes accessed"), "temporary_mb": memory.temp_size_in_bytes / 2**20,
        "aliased_mb": memory.alias_size_in_bytes / 2**20, "argument_mb": memory.argument_size_in_bytes / 2**20,
    }  # fmt: skip


def decode(sizes):
    """Measure the speed of beam search."""
    import numpy as np

    import keras_transformer as kt
    from keras_transformer.data.tokenizers.base import SPECIAL
    from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
    from keras_transformer.training.hardware import peak_memory

    symbols = [f"s{number}" for number in range(sizes["vocab_size"] - len(SPECIAL))]
    hparams = kt.hparams("base", **sizes["base"])
    model = kt.Transformer(sizes["vocab_size"], hparams, dtype="bfloat16")
    translator = kt.Translator(model, SymbolTokenizer(symbols), hparams)
    random, length = np.random.default_rng(0), sizes["output_length"]
    texts = [" ".join(symbols[i] for i in random.integers(0, len(symbols), length)) for _ in range(sizes["sentences"])]

    def translate():
        return translator.translate(texts, nbest=1, extra_length=0, min_length=length)

    translate()  # compile the search before timing it
    found, seconds = timed(translate)
    tokens = sum(len(hypotheses[0].tokens) for hypotheses in found)
    return {
        "hparams": "base", "beam_size": hparams.beam_size, "sentences": len(texts), "output_tokens": tokens,
        "sentences_per_second": len(texts) / seconds, "output_tokens_per_second": tokens / seconds, **peak_memory(),
    }  # fmt: skip


def learn(sizes, flags):
    """Train for a short time and measure BLEU."""
    import keras_transformer as kt
    from keras_transformer.decoding.evaluation import evaluate
    from keras_transformer.training.options import TrainOptions
    from keras_transformer.training.trainer import train_model

    name, preset = ("multi30k_ende_tok", "tiny") if flags.raw_dir else ("toy_ende", "toy")
    settings, steps = {"raw_dir": flags.raw_dir}, sizes["train_steps"]
    if flags.miniature:
        name, preset, settings = "sort", "toy", {"num_symbols": 5, "longest": 6, "train_pairs": 40}
    changes = {"eval_steps": steps, "checkpoint_steps": steps, "decode_steps": None, "max_shapes": sizes["max_shapes"]}
    with tempfile.TemporaryDirectory() as folder:
        problem = kt.problem(name, data_dir=f"{folder}/data", **settings).prepare()
        hparams = kt.hparams(preset, train_steps=steps, **changes, **(TINY if flags.miniature else {}))
        run, options = f"{folder}/run", TrainOptions(precision="bfloat16")
        _, seconds = timed(train_model, problem, hparams, run, options)
        result = evaluate(run)
    scores = {score.name: score.value for score in result.scores}
    return {"problem": name, "hparams": preset, "updates": steps, "seconds": seconds, "scores": scores}


def compiled_model(sizes, name):
    """Return (model, hparams) for a preset. The model is compiled and computes in bfloat16."""
    import keras

    import keras_transformer as kt
    from keras_transformer.backend.loading import load_keras

    load_keras()
    hparams = kt.hparams(name, batch_tokens=sizes["batch_tokens"], **sizes[name])
    model = kt.Transformer(sizes["vocab_size"], hparams, dtype=keras.dtype_policies.get("mixed_bfloat16"))
    model.compile(**kt.compile_arguments(hparams))
    return model, hparams


def example(model, hparams, length):
    """Return (state, batch of random tokens), the arguments of `train_step` of Keras on JAX. Both are on the device."""
    import jax
    import numpy as np

    parts = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables, model.metrics_variables
    state = tuple([variable.value for variable in part] for part in parts)
    shape = hparams.batch_tokens // length, length
    tokens = np.random.default_rng(0).integers(4, model.vocab_size, shape, dtype=np.int32)
    weights = np.full(shape, 1 / tokens.size, np.float32)
    return state, jax.device_put(((tokens, tokens), tokens, weights))


def page(rows):
    """Return the report as Markdown."""
    tflops = next((row["bfloat16_tflops"] for row in rows if row["workload"] == "rate"), None)
    lines = ["# Report of one accelerator", ""]
    for workload in dict.fromkeys(row["workload"] for row in rows):
        own = [row for row in rows if row["workload"] == workload]
        skipped = {"benchmark", "miniature", "workload", "command", "commit", "machine"}
        names = [name for name in own[0] if name not in skipped]
        table = [[text_of(row[name]) for name in names] for row in own]
        if workload == "train" and tflops:
            names.append("utilization")
            for cells, row in zip(table, own):
                cells.append(f"{row['products_tflops'] / tflops:.1%}")
        head = [" | ".join(names), " | ".join("---" for _ in names)]
        lines += [f"## {workload}", "", *(f"| {line} |" for line in (*head, *map(" | ".join, table))), ""]
    last = rows[-1]
    return "\n".join([*lines, f"Commit {last['commit']}, {json.dumps(last['machine'])}", ""])


def text_of(value):
    """Return a measurement as text for a cell of a Markdown table."""
    return f"{value:,.4g}" if isinstance(value, float) else str(value).replace("|", "/")


if __name__ == "__main__":
    run_command(main)
