"""Presets for constituency parsing: the paper's model (§6.3) and smaller models.

The vocabulary size is a setting of the problem, not of the preset. In the paper, it is 16,000 or 32,000 tokens.
"""

from keras_transformer.config.hparams import HParams
from keras_transformer.config.registry import register_hparams


@register_hparams("parsing_wsj")
def parsing_wsj():
    """The paper's WSJ-only model, with untuned settings; paper: F1 91.3 on section 23 (Table 4).

    The authors tuned attention dropout, residual dropout, the learning rate and the beam size on section 22. In this
    preset, attention dropout is 0, and residual dropout and the learning rate are those of `base`. The paper states
    neither the number of updates nor the number of heads. The preset has as many heads as the model of the same width
    in Table 3.
    """
    return HParams(num_layers=4, d_model=1024, num_heads=8, beam_size=21, alpha=0.3, extra_length=300)


@register_hparams("parsing_semisupervised")
def parsing_semisupervised():
    """The paper's model for WSJ and 17M additional sentences, untuned; paper: F1 92.7 on section 23 (Table 4)."""
    return parsing_wsj()


@register_hparams("parsing_small")
def parsing_small():
    """Small parsing model for treebanks of about 15,000 sentences, on two CPU cores."""
    return HParams(
        model="word_aligned_transformer", num_layers=4, d_model=128, d_ff=256, num_heads=4, norm="pre", dropout=0.1,
        word_dropout=0.15, warmup_steps=800, ema_decay=0.999, batch_tokens=2048, max_length=200, train_steps=10_000,
        eval_steps=1000, checkpoint_steps=1000, average_last=5, beam_size=4, alpha=0.3, extra_length=250,
    )  # fmt: skip


@register_hparams("parsing_toy")
def parsing_toy():
    """Parsing model for the problem toy_parsing; trains in minutes on two CPU cores."""
    return HParams(
        model="word_aligned_transformer", num_layers=2, d_model=128, d_ff=256, num_heads=4, norm="pre", dropout=0.1,
        warmup_steps=400, batch_tokens=2048, max_length=128, train_steps=1500, eval_steps=500, checkpoint_steps=500,
        beam_size=4, alpha=0.3, extra_length=100,
    )  # fmt: skip
