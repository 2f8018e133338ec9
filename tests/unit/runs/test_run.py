"""Tests of run directories: settings of an existing run, and metrics."""

import dataclasses

import pytest

import keras_transformer as kt
from keras_transformer.runs.run import Run
from keras_transformer.utils.files import write_json


@pytest.fixture
def run(tmp_path):
    """Return a run without checkpoints."""
    run = Run.configure(tmp_path / "run", kt.problem("reverse", data_dir=tmp_path), "toy", kt.HParams())
    write_json(run.path / "config.json", run.config)
    return run


def test_run_may_lack_newer_problem_parameters(run):
    del run.config["problem"]["parameters"]["longest"]  # as if the run had started before this parameter existed
    write_json(run.path / "config.json", run.config)
    resumed = Run.configure(run.path, run.problem, "toy", run.hparams)
    assert resumed.config_hash == run.config_hash
    with pytest.raises(kt.UserError, match=r"problem\.parameters\.longest=10, not 9"):
        Run.configure(run.path, dataclasses.replace(run.problem, longest=9), "toy", run.hparams)


def test_metrics_skip_damaged_lines(run):
    (run.path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\xff\xfe\x00\n{"\xff": 1}\n{"step": 2}\n{"ste')
    assert run.metrics() == [{"step": 1}, {"step": 2}]
