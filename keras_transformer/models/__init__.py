"""Models: layers joined by hparams."""
