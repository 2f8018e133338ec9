"""Models, built from layers according to hparams."""
