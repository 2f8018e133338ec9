"""Presets for fine-tuning pretrained models."""

from keras_transformer.config.hparams import HParams
from keras_transformer.config.registry import register_hparams


@register_hparams("opus_mt")
def opus_mt():
    """Fine-tuning of converted OPUS-MT models with 6 + 6 layers."""
    return HParams(
        model="marian", norm="marian", activation="swish", max_length=512, alpha=1.0, learning_rate_scale=0.2,
        warmup_steps=1000, batch_tokens=8192, train_steps=5000, eval_steps=500, checkpoint_steps=500,
    )  # fmt: skip
