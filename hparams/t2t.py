"""Presets with the later settings of tensor2tensor, which differ from the paper (docs/from_tensor2tensor.md).

They use pre-norm with a final norm, additional dropout on attention weights and activations, and a different β2. The
warm-up is longer than in the paper, and the learning rate scale is twice as large. tensor2tensor specifies the batch
size in tokens per GPU, so `t2t_base` and `t2t_big` multiply it by 8.
"""

from keras_transformer.config.hparams import HParams
from keras_transformer.config.registry import register_hparams


@register_hparams("t2t_base")
def t2t_base():
    """Equivalent of tensor2tensor's transformer_base (v3) on 8 GPUs."""
    return HParams(
        norm="pre", attention_dropout=0.1, activation_dropout=0.1, adam_beta_2=0.997, warmup_steps=8000,
        learning_rate_scale=2.0, batch_tokens=8 * 4096, train_steps=250_000,
    )  # fmt: skip


@register_hparams("t2t_big")
def t2t_big():
    """Equivalent of tensor2tensor's transformer_big on 8 GPUs."""
    return t2t_base().replace(d_model=1024, d_ff=4096, num_heads=16, dropout=0.3, batch_tokens=8 * 2048)


@register_hparams("t2t_tiny")
def t2t_tiny():
    """Equivalent of tensor2tensor's transformer_tiny on one GPU."""
    return t2t_base().replace(num_layers=2, d_model=128, d_ff=512, num_heads=4, batch_tokens=4096)
