"""Summary of a run, logged before training starts."""

import logging
import math

import keras

from keras_transformer.backend.devices import on_cpu
from keras_transformer.distributed.strategy import count_accelerators, count_replicas
from keras_transformer.training.hardware import device_rate
from keras_transformer.training.memory import available_bytes, estimated_bytes, largest_shape
from keras_transformer.training.schedule import make_schedule
from keras_transformer.utils.machine import cpu_has_bfloat16
from keras_transformer.utils.timing import duration

logger = logging.getLogger(__name__)

PRODUCTS, OTHER = 1.15, 0.5
"""Relative times of the matrix products and of all other work in an update on a CPU (docs/benchmarks.md).

The unit is the time of one large matrix product with as many floating-point operations as the update. Only the time of
the matrix products depends on the precision.
"""
HIGH_RATE = 0.01
"""Learning rate above which the summary has a note: twice the highest rate of any preset."""
MANY_EPOCHS = 1000


def log_summary(run, problem, model, batches, options, distribution, workers=1):
    """Log a table with the sizes, settings and estimated time and memory of a run.

    Args:
        run: `Run`.
        problem: The prepared `Problem`.
        model: The compiled model.
        batches: Training `TokenBatches`, starting at the batch of the next update.
        options: `TrainOptions`.
        distribution: The distribution strategy, or None for one device.
        workers: Number of processes.
    """
    logger.info(str(run.path))
    for title, lines in _rows(run, problem, model, batches, options, distribution, workers).items():
        for index, line in enumerate(lines):
            logger.info(f"  {'' if index else title:<9} {line}")
    if batches.start:
        logger.info(f"  resuming after update {batches.start:,}")


def _rows(run, problem, model, batches, options, distribution, workers):
    """Return the rows of the table, {title: lines}."""
    hparams, plan = run.hparams, batches.plan
    vocabulary = f"{problem.tokenizer.vocab_size:,} tokens in the vocabulary"
    times = getattr(problem, "num_segmentations", 1)
    pairs = f"{plan.num_pairs:,} pairs" + (f" (counting {times} segmentations of each)" if times > 1 else "")
    rows = {
        "problem": [f"{problem.name}: {pairs}, {vocabulary}"],
        "model": [_sizes(run), _parameters(model)],
        "batch": [_batch(plan, batches.few_shapes, options.accumulate)],
        "schedule": [_schedule(hparams, plan.batches_per_epoch)],
        "devices": list(_devices(model, distribution, options, workers)),
        "memory": [_memory(hparams, problem.tokenizer.vocab_size, plan, options, distribution)],
        "results": [
            f"validation every {hparams.eval_steps:,} updates"
            + (f" (decoding every {every:,})" if (every := hparams.decoding_interval) > hparams.eval_steps else "")
            + f", a checkpoint every {hparams.checkpoint_steps:,}, and both at the end"
        ],
    }
    if on_cpu() and batches.start < hparams.train_steps:
        rows["time"] = list(_time(hparams, model, batches))
    if notes := list(_notes(hparams, plan.batches_per_epoch)):
        rows["note"] = notes
    if plan.num_dropped:
        dropped = f"{plan.num_dropped:,} pair{'s' * (plan.num_dropped > 1)}"
        rows["problem"].append(f"training drops {dropped} longer than max_length={hparams.max_length} tokens")
    return rows


def _sizes(run):
    h = run.hparams
    attention = "" if h.encoder_attention == "full" else f", {h.encoder_attention} attention in the encoder"
    name = ", ".join(filter(None, (h.model, run.config["preset"])))
    return (
        f"{name}: {h.num_layers} + {h.decoder_depth} layers, "
        f"d_model {h.d_model}, d_ff {h.d_ff}, {h.num_heads} heads, {h.norm}-norm, dropout {h.dropout:g}{attention}"
    )


def _parameters(model):
    """Return a line with the number of weights, in total and per part of the model."""
    parts = {}
    for variable in model.trainable_variables:
        part = variable.path.removeprefix(f"{model.name}/").partition("/")[0]
        parts[part] = parts.get(part, 0) + math.prod(variable.shape)
    each = ", ".join(f"{part.replace('_', ' ')} {count:,}" for part, count in parts.items())
    return f"{sum(parts.values()):,} parameters: {each}"


def _batch(plan, few_shapes, accumulate):
    """Return a line with the size of an update and the number of updates per epoch."""
    shapes = f" in {len(plan.shapes)} shapes" if few_shapes else ""
    real = plan.real_share("shape" if few_shapes else "longest")
    micro = f" in {accumulate} micro-batches" if accumulate > 1 else ""
    return (
        f"up to {plan.batch_tokens:,} source and {plan.batch_tokens:,} target tokens per update{micro}; "
        f"{plan.batches_per_epoch:,} batches{shapes} per epoch, {1 - real:.1%} padding"
    )


def _schedule(hparams, updates_per_epoch):
    peak, rate = _peak(hparams)
    after = ", then ∝ 1/√update" if peak < hparams.train_steps else ""
    return (
        f"{hparams.train_steps:,} updates ({hparams.train_steps / updates_per_epoch:.3g} epochs); learning rate up to "
        f"{rate:.2e} at update {peak:,}{after}"
    )


def _peak(hparams):
    """Return (update, learning rate) at which the learning rate is highest."""
    update = min(hparams.warmup_steps, hparams.train_steps)
    return update, float(make_schedule(hparams)(update - 1))


def _memory(hparams, vocab_size, plan, options, distribution):
    """Return a line with the estimated memory of the largest update."""
    rows, *lengths = largest_shape(hparams, vocab_size, plan)
    rows_at_once = -(-rows // (options.accumulate * count_replicas(distribution)))
    wanted = estimated_bytes(hparams, vocab_size, rows_at_once, *lengths, options.remat)
    line = (
        f"about {wanted / 1e6:,.0f} MB for the largest update ({rows:,} pairs of {lengths[0]} and {lengths[1]} tokens)"
    )
    free = available_bytes()
    if free is not None and wanted > free:
        line += (
            f"; only {free / 1e6:,.0f} MB is free: try --accumulate or --remat, or a smaller --batch_tokens in another "
            "--output_dir"
        )
    return line


def _time(hparams, model, batches):
    """Yield lines with the estimated time of the remaining updates on this CPU and the number of compilations."""
    updates = hparams.train_steps - batches.start
    some = range(min(updates, batches.batches_per_epoch, 50))
    flops = sum(model.update_flops(*batches.shape(index)) for index in some) / len(some) * updates
    seconds = flops * (PRODUCTS / device_rate(model.compute_dtype) + OTHER / device_rate("float32"))
    yield (
        f"about {duration(seconds)} for the updates: {flops:.1e} floating point operations at {flops / seconds:.1e} "
        "per second"
    )
    if batches.few_shapes:
        count = len(batches.shapes(updates))
        when = "during the first updates" if keras.backend.backend() == "jax" else "each on first use"
        yield f"plus the compilation of {count} batch shapes, {when}"


def _notes(hparams, updates_per_epoch):
    """Yield a note for each unusual setting that is likely to work badly."""
    if hparams.warmup_steps >= hparams.train_steps > 1:
        yield f"the learning rate rises until the end, because warmup_steps is {hparams.warmup_steps:,}"
    if _peak(hparams)[1] > HIGH_RATE:
        yield "the learning rate is at least twice that of any preset; raise warmup_steps or lower learning_rate_scale"
    if hparams.train_steps > MANY_EPOCHS * updates_per_epoch and not hparams.patience:
        yield "the corpus is small for this number of updates; lower train_steps or use --patience=10"


def _devices(model, distribution, options, workers):
    """Yield a line with devices, backend, precision and compilation, and a hint if another precision is faster."""
    accelerators, replicas = count_accelerators(distribution), count_replicas(distribution)
    kind = "accelerator" if accelerators else "device"
    devices = f"{replicas} {kind}{'s' * (replicas > 1)}" + (f" of {workers} workers" if workers > 1 else "")
    compiled = "XLA" if model.jit_compile else "no XLA"
    remat = ", rematerialization" if options.remat else ""
    backend = keras.backend.backend()
    yield f"{devices}; {backend}, {options.precision}, {compiled}{remat}"
    # On CPUs, JAX multiplies matrices in bfloat16 no faster than in float32.
    if backend == "tensorflow" and on_cpu():
        if options.precision == "float32" and cpu_has_bfloat16():
            yield "this CPU has bfloat16 instructions: --precision=bfloat16 is faster"
        if options.precision == "bfloat16" and cpu_has_bfloat16() is False:
            yield "this CPU has no bfloat16 instructions: --precision=float32 is faster"
