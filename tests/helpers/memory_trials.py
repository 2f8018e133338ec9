"""The model and the options of memory trials in tests."""

import dataclasses

import keras_transformer as kt

HPARAMS = kt.HParams(num_layers=1, d_model=64, d_ff=512, num_heads=2, batch_tokens=8000)
OPTIONS = {"strategy": "auto", "precision": "float32", "accumulate": 1, "remat": False, "jit_compile": "auto"}
CONFIG = {
    "model": "transformer",
    "hparams": dataclasses.asdict(HPARAMS),
    "problem": {"name": "copy"},
    "preset": "toy",
    "plugins": [],
}
VOCAB_SIZE = 4000
