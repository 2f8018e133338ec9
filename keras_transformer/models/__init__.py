"""Models, built from layers according to hyperparameters."""
