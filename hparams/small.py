"""Presets for small corpora and CPUs."""

from keras_transformer.config.hparams import HParams
from keras_transformer.config.registry import register_hparams


@register_hparams("tiny")
def tiny():
    """Transformer-Tiny of Wu et al. (2021) for Multi30k; published score: 41.02 BLEU on test 2016.

    An epoch of Multi30k has 59 updates and ends with a validation and a checkpoint. The patience is ten epochs, and the
    averaged model is the mean of the last ten checkpoints. Wu et al. (LividWo/Revisit-MMT on GitHub) divide the
    log-probability of a hypothesis by its length. With α = 1.3, the length penalty of §6.1 has nearly the same effect:
    for translations of about 15 tokens, as in Multi30k, the penalty grows almost in proportion to the length.
    """
    return HParams(
        num_layers=4, d_model=128, d_ff=256, num_heads=4, dropout=0.3, learning_rate_scale=2.53, warmup_steps=2000,
        batch_tokens=8192, train_steps=8000, eval_steps=59, decode_steps=295, checkpoint_steps=59, best_metric="loss",
        patience=10, average_last=10, keep_checkpoints=10, beam_size=5, alpha=1.3,
    )  # fmt: skip


@register_hparams("tiny_plus")
def tiny_plus():
    """Tiny with smaller batches and a moving average of weights, for knowledge distillation; not published.

    Compared with `tiny`, batches have a quarter of the tokens, and the learning rate is about half as large. See
    docs/own_data.md for the complete recipe.
    """
    return tiny().replace(
        learning_rate_scale=1.3, batch_tokens=2048, train_steps=12_000, eval_steps=240, decode_steps=1200,
        checkpoint_steps=240, patience=None, ema_decay=0.999,
    )  # fmt: skip


@register_hparams("tiny_short")
def tiny_short():
    """Tiny with 1,500 updates and the paper's learning rate, for a small-scale version of Table 3."""
    return tiny().replace(
        learning_rate_scale=1.0, warmup_steps=500, train_steps=1500, eval_steps=500, decode_steps=None, patience=None
    )


@register_hparams("small")
def small():
    """Model between tiny and base, for corpora of about 100,000 pairs."""
    return HParams(
        num_layers=4, d_model=256, d_ff=1024, num_heads=4, dropout=0.2, warmup_steps=4000, batch_tokens=8192,
        train_steps=50_000, eval_steps=1000, checkpoint_steps=1000,
    )  # fmt: skip


@register_hparams("quick")
def quick():
    """Small model for a first experiment with a few thousand of your own pairs; trains in minutes on two CPU cores."""
    return HParams(
        num_layers=2, d_model=128, d_ff=256, num_heads=4, dropout=0.1, warmup_steps=400, batch_tokens=2048,
        max_length=128, train_steps=1000, eval_steps=250, checkpoint_steps=250,
    )  # fmt: skip


@register_hparams("toy")
def toy():
    """Small model for the problem toy_ende; trains in minutes on two CPU cores."""
    return HParams(
        num_layers=2, d_model=128, d_ff=256, num_heads=4, dropout=0.1, learning_rate_scale=1.0, warmup_steps=400,
        batch_tokens=2048, max_length=64, train_steps=2500, eval_steps=500, checkpoint_steps=500, extra_length=20,
    )  # fmt: skip
