"""Memory of a training run: an estimate, a check before the start, and a clear error if memory runs out."""

import contextlib
import re

from keras_transformer.backend.devices import on_cpu
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.machine import proc_entries

OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|ResourceExhausted|MemoryError|bad_alloc|[Oo]ut of memory|\bOOM\b")
"""Pattern for allocation errors of TensorFlow, JAX and Python, which have no common class."""


@contextlib.contextmanager
def memory_errors(options):
    """Turn an out-of-memory error in a `with` block into a `UserError` that suggests how to save memory.

    Args:
        options: `TrainOptions`.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or not OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}"):
            raise
        flags = [f"--accumulate={2 * options.accumulate}"]
        flags += ["--remat"] * (not options.remat)
        flags += ["--precision=bfloat16"] * (options.precision == "float32")
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(": ")
        raise UserError(
            f"training ran out of memory ({cause}); stop other programs, or try {' or '.join(flags)}, or a smaller "
            "--batch_tokens in another --output_dir. --accumulate and --remat do not save memory during validation, "
            "but a smaller --beam_size does."
        ) from error


def largest_shape(hparams, vocab_size, plan):
    """Return the shape (rows, source length, target length) of the batches of a plan that need the most memory."""
    return max(plan.shapes, key=lambda shape: estimated_bytes(hparams, vocab_size, *shape))


def estimated_bytes(hparams, vocab_size, rows, source_length, target_length, remat=False):
    """Estimate the memory of an update in bytes: weights, gradients, optimizer state and activations.

    Args:
        hparams: `HParams`.
        vocab_size: Number of tokens in the vocabulary.
        rows: Sentence pairs in a micro-batch.
        source_length: Tokens per source.
        target_length: Tokens per target.
        remat: Whether the backward pass recomputes layers.
    """
    from keras_transformer.models.fused_loss import CHUNK_LOGITS

    rows *= hparams.passes
    h, source, target = hparams, rows * source_length, rows * target_length
    weights = _weights(h, vocab_size)
    pairs = 3 * rows * h.num_heads  # per pair of positions: logit, weight and mask of each head
    encoder_layer = source * (12 * h.d_model + 3 * h.d_ff) + pairs * source_length**2
    decoder_layer = target * (20 * h.d_model + 3 * h.d_ff) + pairs * target_length * (target_length + source_length)
    logits = 4 * min(target * vocab_size, CHUNK_LOGITS)
    if remat:  # the inputs of all layers, and all activations of one layer per stack
        layers = encoder_layer + decoder_layer + (h.num_layers * source + h.decoder_depth * target) * h.d_model
    else:
        layers = h.num_layers * encoder_layer + h.decoder_depth * decoder_layer
    return 4 * (5 * weights + layers + logits)


def check_weights(hparams, vocab_size):
    """Raise a `UserError` if the weights alone exceed the free memory. With accelerators, there is no check.

    Args:
        hparams: `HParams`.
        vocab_size: Number of tokens in the vocabulary.
    """
    wanted, free = 4 * _weights(hparams, vocab_size), available_bytes()
    if free is not None and wanted > free:
        raise UserError(
            f"the weights need about {wanted / 1e9:,.1f} GB of memory, but only {free / 1e9:,.1f} GB is free; "
            "lower num_layers, d_model, d_ff or the vocabulary size"
        )


def _weights(h, vocab_size):
    """Estimate the number of weights of a model."""
    heads = h.num_heads * (h.key_width + h.value_width)
    encoder_layer, decoder_layer = 2 * (heads + h.d_ff), 2 * (2 * heads + h.d_ff)
    positions = h.max_length if h.positions == "learned" else 0
    return h.d_model * (vocab_size + positions + h.num_layers * encoder_layer + h.decoder_depth * decoder_layer)


def available_bytes():
    """Return the free memory in bytes on Linux, or None on other systems and with accelerators."""
    free = proc_entries("/proc/meminfo").get("MemAvailable:") if on_cpu() else None
    return free and int(free) << 10
