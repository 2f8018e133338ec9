"""Variations of the base model from Table 3 of the paper. Each changes one or two fields of `base`.

Each description quotes three figures from the paper: perplexity per word piece, BLEU on newstest2013 (with beam search,
but without checkpoint averaging) and the number of parameters in millions.
"""

from keras_transformer.config.hparams import HParams
from keras_transformer.config.registry import register_hparams


def variation(name, what, perplexity, bleu, millions=65, **changes):
    """Register a preset: `base` with changed fields, and a description that quotes the paper's scores."""

    def hparams():
        return HParams(**changes)

    hparams.__doc__ = f"Table 3, {what}; paper: PPL {perplexity}, BLEU {bleu}, {millions}M parameters."
    register_hparams(name)(hparams)


# (A): number of heads, with a constant amount of computation: d_k = d_v = d_model / num_heads
variation("base_h1", "A: one head of size 512", 5.29, 24.9, num_heads=1)
variation("base_h4", "A: 4 heads of size 128", 5.00, 25.5, num_heads=4)
variation("base_h16", "A: 16 heads of size 32", 4.91, 25.8, num_heads=16)
variation("base_h32", "A: 32 heads of size 16", 5.01, 25.4, num_heads=32)
# (B): key size, with an unchanged value size
variation("base_dk16", "B: keys of size 16", 5.16, 25.1, 58, d_k=16)
variation("base_dk32", "B: keys of size 32", 5.01, 25.4, 60, d_k=32)
# (C): model size
variation("base_n2", "C: 2 layers", 6.11, 23.7, 36, num_layers=2)
variation("base_n4", "C: 4 layers", 5.19, 25.3, 50, num_layers=4)
variation("base_n8", "C: 8 layers", 4.88, 25.5, 80, num_layers=8)
variation("base_d256", "C: width 256, heads of size 32", 5.75, 24.5, 28, d_model=256)
variation("base_d1024", "C: width 1024, heads of size 128", 4.66, 26.0, 168, d_model=1024)
variation("base_ff1024", "C: feed-forward width 1024", 5.12, 25.4, 53, d_ff=1024)
variation("base_ff4096", "C: feed-forward width 4096", 4.75, 26.2, 90, d_ff=4096)
# (D): regularization
variation("base_dropout0", "D: no dropout", 5.77, 24.6, dropout=0.0)
variation("base_dropout02", "D: dropout 0.2", 4.95, 25.5, dropout=0.2)
variation("base_smoothing0", "D: no label smoothing", 4.67, 25.3, label_smoothing=0.0)
variation("base_smoothing02", "D: label smoothing 0.2", 5.47, 25.7, label_smoothing=0.2)
# (E): positions
variation("base_learned_positions", "E: learned positions", 4.92, 25.7, positions="learned")
