"""Test of rematerialization with gradient accumulation on several devices."""

import keras
from helpers.training_alike import EverySecond, assert_same_training, fit, small

from keras_transformer.distributed.strategy import make_strategy


def test_remat_with_micro_batches_and_devices_makes_same_updates(tmp_path):
    problem, hparams = EverySecond(data_dir=str(tmp_path)).prepare(), small(num_layers=2, batch_tokens=64)
    strategy = make_strategy("mirrored" if keras.backend.backend() == "tensorflow" else "jax", 2)
    found = fit(problem, strategy, accumulate=3, hparams=hparams, remat=True)
    assert_same_training(found, fit(problem, hparams=hparams))
