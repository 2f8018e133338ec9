"""The paper's models. A paper's name means the paper: these never change."""

from keras_transformer.hyperparameters import HParams
from keras_transformer.registry import register_hparams


@register_hparams("base")
def base():
    """The paper's base model: 100,000 updates, 27.3 BLEU on WMT14 en-de (Table 2)."""
    return HParams()


@register_hparams("big")
def big():
    """The paper's big model for en-de: 300,000 updates, 28.4 BLEU on WMT14 en-de (Table 2)."""
    return HParams(
        d_model=1024, d_ff=4096, num_heads=16, dropout=0.3, train_steps=300_000, average_last=20, keep_checkpoints=20
    )


@register_hparams("big_enfr")
def big_enfr():
    """The paper's big model for en-fr, with less dropout: 41.8 BLEU on WMT14 en-fr (Table 2)."""
    return big().replace(dropout=0.1)
