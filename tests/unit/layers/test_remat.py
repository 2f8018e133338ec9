"""Tests that rematerialization gives the same updates and dropout masks, but stores fewer activations."""

import keras
import numpy as np
import pytest
from helpers.quick import eager_functions
from helpers.training_alike import EverySecond, assert_same_training, fit, small

import keras_transformer as kt

pytestmark = pytest.mark.backend


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return EverySecond(data_dir=str(tmp_path_factory.mktemp("data"))).prepare()


def hparams(**changes):
    return small(num_layers=2, batch_tokens=128, dropout=0.3, attention_dropout=0.2, activation_dropout=0.2, **changes)


def test_remat_makes_identical_updates(problem):
    with eager_functions():
        found, kept = (fit(problem, hparams=hparams(), remat=remat) for remat in (True, False))
    assert_same_training(found, kept)
    seeds = [
        [keras.ops.convert_to_numpy(v.value) for v in model.non_trainable_variables if "seed" in v.path]
        for model in (found[0], kept[0])
    ]
    assert len(seeds[0]) == 2 + 2 * (2 + 2) + 2 * (3 + 3)
    for one, other in zip(*seeds, strict=True):
        np.testing.assert_array_equal(one, other)


def test_remat_keeps_fewer_activations(problem):
    if keras.backend.backend() != "jax":
        pytest.skip("only JAX lists stored activations")
    import jax

    def kept(remat):
        model = kt.Transformer.from_hparams(hparams(), vocab_size=50)
        model.compile(**kt.compile_arguments(hparams(), remat=remat))
        ids = np.full((16, 32), 7, "int32")

        def loss(values):
            with keras.StatelessScope(zip(model.trainable_variables, values)):
                return keras.ops.sum(model.states((ids, ids), training=True))

        _, backward = jax.vjp(loss, [variable.value for variable in model.trainable_variables])
        return sum(array.size for array in jax.tree.leaves(backward))

    sizes = [kept(remat) for remat in (False, True)]
    assert sizes[1] < sizes[0] / 3


def test_remat_rejects_unknown_seed_generators(problem):
    model = kt.Transformer.from_hparams(hparams(), problem)
    model.decoder.layers[1] = keras.layers.Dropout(0.1, seed=1, name="layer_2")
    with pytest.raises(kt.UserError, match="layer layer_2 must come from .* got SeedGenerator"):
        model.compile(**kt.compile_arguments(hparams(), remat=True))
    model.compile(**kt.compile_arguments(hparams()))


def test_remat_setting_is_kept_by_compiled_model(problem):
    model = kt.Transformer.from_hparams(hparams(), problem)
    model.compile(**kt.compile_arguments(hparams(), remat=True))
    assert model.get_compile_config()["remat"] and model.encoder.remat and model.decoder.remat
    model.compile(**kt.compile_arguments(hparams()))
    assert not model.encoder.remat and not model.decoder.remat
