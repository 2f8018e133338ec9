"""Models, built from the layers by hparams."""
