"""§6.3: the paper's models for constituency parsing. The vocabularies, 16,000 and 32,000, are the problem's."""

from keras_transformer.hyperparameters import HParams
from keras_transformer.registry import register_hparams


@register_hparams("parsing_wsj")
def parsing_wsj():
    """The paper's parser trained on WSJ alone: F1 91.3 on section 23 (Table 4)."""
    # The paper does not give heads, dropout and steps: the first as in Table 3's row of this width, the others base's.
    return HParams(num_layers=4, d_model=1024, num_heads=8, beam_size=21, alpha=0.3, extra_length=300)


@register_hparams("parsing_semisupervised")
def parsing_semisupervised():
    """The paper's parser trained on 17M sentences more: F1 92.7 on section 23 (Table 4)."""
    return parsing_wsj()
