"""The paper's models. A paper's name means the paper: these never change."""

from keras_transformer.config.hparams import HParams
from keras_transformer.config.registry import register_hparams


@register_hparams("base")
def base():
    """The paper's base model: 100,000 updates, 27.3 BLEU on WMT14 en-de (Table 2).

    Two settings differ from the paper's. Training drops pairs with more than 256 tokens on a side (`max_length`). The
    last five checkpoints are at most 1,000 updates apart and so span 4,000; the paper's are 10 minutes apart, which are
    1,500 updates, and span 6,000.
    """
    return HParams()


@register_hparams("big")
def big():
    """The paper's big model for en-de: 300,000 updates, 28.4 BLEU on WMT14 en-de (Table 2).

    It differs from the paper as `base` does. Its last 20 checkpoints span up to 19,000 updates; the paper's, 600
    updates apart, span 11,400, and so do these where an update takes a second, because `checkpoint_minutes` is 10.
    """
    return HParams(
        d_model=1024, d_ff=4096, num_heads=16, dropout=0.3, train_steps=300_000, average_last=20, keep_checkpoints=20
    )


@register_hparams("big_enfr")
def big_enfr():
    """The paper's big model for en-fr, with less dropout: 41.8 BLEU on WMT14 en-fr (Table 2)."""
    return big().replace(dropout=0.1)
