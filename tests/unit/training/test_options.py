"""Tests of `TrainOptions`: defaults and rejected values."""

import dataclasses

import keras
import pytest

import keras_transformer as kt
from keras_transformer.distributed.cluster import Coordinator
from keras_transformer.training.options import PRECISIONS

COORDINATOR = Coordinator("localhost:1", 2, 0)


@pytest.mark.backend
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "mirored"}, "unknown strategy 'mirored': did you mean mirrored"),
        ({"strategy": "one", "devices": 2}, "--strategy=one needs --devices=1, got --devices=2"),
        ({"precision": "bf16"}, "unknown precision 'bf16': did you mean bfloat16"),
        ({"accumulate": 0}, "accumulate must be an integer of at least 1, got 0"),
        ({"accumulate": 2.5}, "accumulate must be an integer of at least 1, got 2.5"),
        ({"devices": 0}, "devices must be an integer of at least 1, got 0"),
        ({"devices": "2"}, "devices must be an integer of at least 1, got '2'"),
        ({"jit_compile": "on"}, "jit_compile must be True, False or .auto., got 'on'"),
        ({"strategy": "one", "coordinator": COORDINATOR}, "--coordinator needs"),
    ],
)
def test_options_reject_invalid_values(changes, message):
    with pytest.raises(kt.UserError, match=message):
        kt.TrainOptions(**changes)


@pytest.mark.backend
def test_options_let_only_tensorflow_switch_compilation_off():
    if keras.backend.backend() == "tensorflow":
        assert kt.TrainOptions(jit_compile=False).jit_compile is False
    else:
        with pytest.raises(kt.UserError, match="--jit_compile=off needs KERAS_BACKEND=tensorflow"):
            kt.TrainOptions(jit_compile=False)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_options_map_precisions_to_keras_policies(precision):
    policy = keras.dtype_policies.get(kt.TrainOptions(precision=precision).dtype_policy)
    assert (policy.compute_dtype, policy.variable_dtype) == (precision, "float32")


def test_update_settings_exclude_coordination_options():
    names = {field.name for field in dataclasses.fields(kt.TrainOptions)}
    assert names - kt.TrainOptions().update_settings().keys() == {"coordinator", "worker_patience"}
