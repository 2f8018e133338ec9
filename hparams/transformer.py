"""Presets for the paper's models. These presets never change."""

from keras_transformer.config.hparams import HParams
from keras_transformer.config.registry import register_hparams


@register_hparams("base")
def base():
    """The paper's base model: 100,000 updates, 27.3 BLEU on WMT14 en-de (Table 2).

    Two settings differ from the paper. Training drops pairs with more than 256 tokens on a side (`max_length`). A run
    writes a checkpoint at least every 1,000 updates, so the five averaged checkpoints span at most 4,000 updates. In
    the paper, the interval is 10 minutes, or 1,500 updates, so the five checkpoints span 6,000 updates.
    """
    return HParams()


@register_hparams("big")
def big():
    """The paper's big model for en-de: 300,000 updates, 28.4 BLEU on WMT14 en-de (Table 2).

    It differs from the paper in the same two settings as `base`. The 20 averaged checkpoints span up to 19,000
    updates. In the paper, the interval is 10 minutes, or 600 updates, so the 20 checkpoints span 11,400 updates.
    """
    return HParams(
        d_model=1024, d_ff=4096, num_heads=16, dropout=0.3, train_steps=300_000, average_last=20, keep_checkpoints=20
    )


@register_hparams("big_enfr")
def big_enfr():
    """The paper's big model for en-fr, with less dropout: 41.8 BLEU on WMT14 en-fr (Table 2)."""
    return big().replace(dropout=0.1)
