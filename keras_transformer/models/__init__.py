"""Models that are built from layers according to hparams."""
