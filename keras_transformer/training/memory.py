"""Whether the largest batch fits into memory: tried before a training starts, in a process that may run out of it."""

import contextlib
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from keras_transformer.backend.devices import on_cpu, proc_entries
from keras_transformer.data.tokenizers.base import UNK
from keras_transformer.training.signals import Interrupted
from keras_transformer.utils.errors import UserError

WORTH_A_TRIAL = 2e9
"""Bytes: less is there, wherever a model is trained."""
SLICES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Values of `accumulate` that are tried where a whole batch does not fit."""
USABLE = 0.9
"""Share of the free memory that an update may take: evaluation and other processes want some, too."""
CONTROL_GROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Where Linux says what a container may have and takes; files that it only remembers do not count."""
OUT_OF_MEMORY = re.compile(
    r"RESOURCE_EXHAUSTED|ResourceExhausted|\bOOM\b|bad_alloc|[Oo]ut of memory|[Cc]annot allocate|start new thread"
    r"|MemoryError|failed to map segment"
)
KILLED = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
"""How a process ends that is given no memory."""
KILLED_FIRST = "1000"
"""For Linux: which process is to go when there is no memory left."""
USED_UP = 0.8
"""Share of what a process may take from which on any error is one of memory: extensions make all kinds of them."""


def check_memory(run, vocab_size, plan, settings, stop, report):
    """Makes an update of a batch of the largest shape, with random tokens, and throws it away.

    Nothing of the training itself is touched: it happens in a process of its own, before this one asks for memory. On
    CPU that process may have most of what is free now, on accelerators what they have.

    Args:
        run: `Run`.
        vocab_size: Tokens in the vocabulary.
        plan: `BatchPlan` of the training.
        settings: {"strategy", "devices", "precision", "accumulate", "remat", "jit_compile"}, as `train` takes them.
        stop: `StopRequest`.
        report: Called with a line about what is being tried.

    Raises:
        UserError: It does not fit; it says what does.
        Interrupted: SIGTERM or SIGINT came.
    """
    hparams = run.hparams
    shape = _largest(hparams, vocab_size, plan)
    rows, accumulate = shape[0], settings["accumulate"]
    what = f"the largest batch, {rows} pairs of {shape[1]} and {shape[2]} tokens"

    def tried(slices, remat=settings["remat"]):
        suffix = f" in {slices} slices" * (slices > 1) + " with --remat" * remat
        report(f"  trying {what}, for memory{suffix}")
        to_try = {**settings, "accumulate": slices, "remat": remat}
        return try_update(to_try, run.config, vocab_size, shape, int(USABLE * available_bytes()), stop)

    found = tried(accumulate)
    if found["fits"]:
        peak = f"{found['peak_mb']:,} MB at most" if "peak_mb" in found else None
        report(f"  it fits: {peak}" if peak else f"  that could not be tried ({found['error']}); training goes on")
        return
    # A model that cannot be computed twice is an error here, and no hint.
    same = ["--remat"] if not settings["remat"] and "peak_mb" in tried(accumulate, remat=True) else []
    more = [slices for slices in SLICES if accumulate < slices <= rows]
    smallest = _first(more, lambda slices: tried(slices)["fits"])
    if smallest:
        same.append(f"--accumulate={smallest}")
    elif more and not same and not settings["remat"] and "peak_mb" in tried(more[-1], remat=True):
        same.append(f"--remat and --accumulate={more[-1]}")
    if same:
        hint = f"it does with {' or '.join(same)}, for the same updates"
    else:
        hint = "nor does a small part of it: the model itself is too large"
    if smallest and not run.checkpoints.steps():  # a run that has begun keeps its batches
        tokens = hparams.batch_tokens * accumulate // smallest
        hint += f", or with --batch_tokens={tokens}" * (tokens >= max(shape[1:]))
    raise UserError(f"{what}, does not fit into memory ({found['error']}); {hint}")


def may_not_fit(run, vocab_size, plan, accumulate, remat):
    """Whether an update of the largest batch is large enough to be tried."""
    rows, *lengths = _largest(run.hparams, vocab_size, plan)
    return estimated_bytes(run.hparams, vocab_size, -(-rows // accumulate), *lengths, remat) >= WORTH_A_TRIAL


def _largest(hparams, vocab_size, plan):
    return max(plan.shapes, key=lambda shape: estimated_bytes(hparams, vocab_size, *shape))


def estimated_bytes(hparams, vocab_size, rows, source_length, target_length, remat=False):
    """Returns roughly the bytes that an update takes: weights, gradients, two slots, and what the layers keep."""
    from keras_transformer.models.fused_loss import CHUNK_LOGITS

    rows *= hparams.passes
    h, source, target = hparams, rows * source_length, rows * target_length
    weights = _weights(h, vocab_size)
    states = source * (12 * h.d_model + 3 * h.d_ff) + target * (20 * h.d_model + 3 * h.d_ff)
    attention = 3 * rows * h.num_heads * (source_length**2 + target_length**2 + source_length * target_length)
    logits = 4 * min(target * vocab_size, CHUNK_LOGITS)
    layers = states + attention
    if remat:  # the inputs of all layers, and one layer as it is computed once more
        layers += h.num_layers * (source + target) * h.d_model
    else:
        layers *= h.num_layers
    return 4 * (5 * weights + layers + logits)


def check_weights(hparams, vocab_size):
    """Raise a `UserError` if the weights of a model alone take more than the free memory of a machine without GPU.

    Accelerators have their own memory, which the first update tries.

    Args:
        hparams: `HParams`.
        vocab_size: Number of tokens in the vocabulary.
    """
    wanted, free = 4 * _weights(hparams, vocab_size), available_bytes()
    if wanted > free and on_cpu():
        raise UserError(
            f"the model must fit into {free / 1e9:,.1f} GB of memory, got about {wanted / 1e9:,.1f} GB of weights; "
            "lower num_layers, d_model, d_ff or the vocabulary"
        )


def _weights(h, vocab_size):
    """Return roughly the number of weights of a model."""
    heads = h.num_heads * (h.key_width + h.value_width)
    return vocab_size * h.d_model + h.num_layers * (6 * h.d_model * heads + 4 * h.d_model * h.d_ff)


def available_bytes():
    """Returns the memory that this process may still take, as far as the system tells."""
    limits = [int(proc_entries("/proc/meminfo").get("MemAvailable:", 1 << 50)) << 10]
    for folder, limit, used, cache in CONTROL_GROUPS:
        try:
            taken = int((folder / used).read_text()) - int(proc_entries(folder / "memory.stat").get(cache, 0))
            limits.append(int((folder / limit).read_text()) - taken)
        except (OSError, ValueError):  # there is none, or "max"
            continue
    return max(min(limits), 0)


def _first(candidates, is_true):
    """The first of candidates from which on `is_true`, by halving; None if there is none."""
    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        if is_true(candidates[middle]):
            high = middle
        else:
            low = middle + 1
    return candidates[low] if low < len(candidates) else None


def try_update(settings, config, vocab_size, shape, available, stop):
    """Has another process make an update with random tokens.

    Args:
        settings: Of `build_model`.
        config: That of a run: {"model", "hparams", "problem", …}.
        vocab_size: Tokens in the vocabulary.
        shape: (rows, source length, target length) of the batch, lengths in tokens.
        available: Bytes that the process may take on CPU, beside what it has when Keras is loaded.
        stop: `StopRequest`.

    Returns:
        {"fits": True, "peak_mb"}, {"fits": False, "error"}, or {"fits": True, "error"} where it ended for another
        reason. The peak is the process's or its fullest accelerator's, whichever is larger, in MiB.

    Raises:
        Interrupted: SIGTERM or SIGINT came.
    """
    question = {
        "settings": settings, "config": config, "vocab_size": vocab_size, "shape": shape, "available": available
    }  # fmt: skip
    path = [str(Path(__file__).parents[2]), *map(os.path.abspath, sys.path)]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", f"from {__name__} import answer; answer()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)}, process_group=0,  # signals are this process's to take
    )  # fmt: skip
    with process:
        try:
            out, err = _conversation(process, json.dumps(question), stop)
        finally:
            process.kill()
    try:
        return json.loads(out.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        if -process.returncode in KILLED:
            return {"fits": False, "error": f"the process was ended by {signal.Signals(-process.returncode).name}"}
        error = (err.splitlines() or ["nothing was said"])[-1]
        return {"fits": not OUT_OF_MEMORY.search(error), "error": error}


def _conversation(process, text, stop):
    """What a process that is given a text says, on stdout and stderr; looks out for signals meanwhile."""
    while True:
        try:
            return process.communicate(text, timeout=0.2)
        except subprocess.TimeoutExpired:
            text = None  # it is on its way
            if stop.received:
                raise Interrupted(stop.received) from None


def answer():
    """The other process: reads what to try from stdin, tries it, and prints what came of it as JSON."""
    question = json.load(sys.stdin)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(KILLED_FIRST)
    from keras_transformer.backend.loading import load_keras

    load_keras()
    from keras_transformer.training.hardware import peak_memory

    used_up = _limit_memory(question["available"])
    try:
        _update(question)
        found = {"fits": True, "peak_mb": max(peak_memory().values())}
    except Exception as error:
        out_of_memory = ran_out(error) or _data_bytes() > used_up
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        found = {"fits": not out_of_memory, "error": text[:200].rstrip(": ")}
    print(json.dumps(found))


def ran_out(error):
    """Whether an exception, or one that it came of, says that there was no memory left."""
    while error:
        if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}"):
            return True
        error = error.__cause__ or error.__context__  # a compiled extension makes a SystemError of what it meets
    return False


def _update(question):
    """Trains a new model with one batch of random tokens."""
    from keras_transformer.data.batch_plan import BatchPlan
    from keras_transformer.data.token_batches import TokenBatches
    from keras_transformer.data.token_store import Split
    from keras_transformer.runs.run import Run
    from keras_transformer.training.model_building import build_model

    run = Run(None, question["config"])
    run.load_plugins()
    rows, *lengths = question["shape"]
    model, _ = build_model(run, question["vocab_size"], **question["settings"])
    random = np.random.default_rng(0)
    split = Split(*(_RandomSequences(rows, length, question["vocab_size"], random) for length in lengths))
    plan = BatchPlan(split.source.lengths, split.target.lengths, run.hparams.batch_tokens)
    model.fit(TokenBatches(split, plan), steps_per_epoch=1, epochs=1, verbose=0)


class _RandomSequences:
    """As many sequences of a length, all of random ids."""

    def __init__(self, rows, length, vocab_size, random):
        self.lengths = np.full(rows, length, np.int32)
        self._ids = random.integers(UNK, vocab_size, (rows, length))

    def __getitem__(self, row):
        return self._ids[row]


def _limit_memory(available):
    """Bounds what this process still takes, in bytes, unless it computes elsewhere.

    Returns:
        How many bytes of data, `_data_bytes`, are nearly all that it may have.
    """
    if not on_cpu():
        return math.inf
    taken = _data_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = taken + available
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return taken + USED_UP * (limit - taken)


def _data_bytes():
    """What Linux counts against RLIMIT_DATA; elsewhere 0."""
    return int(proc_entries("/proc/self/status").get("VmData:", 0)) << 10
