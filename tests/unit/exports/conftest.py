"""A run that all tests of exports share."""

import pytest
from helpers.languages import toy_pairs
from helpers.quick import quick_runs

import keras_transformer as kt
from keras_transformer.training.trainer import train_model


@pytest.fixture(scope="package")
def trained_run(tmp_path_factory):
    """A run of two updates on toy text."""
    folder = tmp_path_factory.mktemp("exports")
    pairs = toy_pairs("tr", seed=1)[:300]
    (folder / "train.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    problem = kt.problem("parallel_text", raw_dir=folder, data_dir=folder / "data", vocab_size=120, target="tr")
    hparams = kt.HParams(
        num_layers=2, num_decoder_layers=1, d_model=8, d_ff=16, num_heads=2, activation="swish", train_steps=2,
        warmup_steps=2, best_metric="nll",
    )  # fmt: skip
    with quick_runs():
        train_model(problem, hparams, folder / "run")
    return folder / "run"
