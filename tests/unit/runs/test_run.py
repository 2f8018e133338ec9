"""Tests of run directories: settings of an existing run, and metrics."""

import contextlib
import dataclasses

import pytest
from helpers.sample_text import sentences

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


@pytest.mark.parametrize("split", ["test", "validation"])
def test_check_corpus_compares_what_training_uses(tmp_path, split):
    texts = {"train": sentences(60, 1), "validation": sentences(9, 2), "test": sentences(9, 3)}
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name, lines in texts.items():
        for language in ("en", "de"):
            (corpus / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    problem = kt.problem("parallel_text", data_dir=tmp_path / "data", raw_dir=corpus, vocab_size=60).prepare()
    run = Run.configure(tmp_path / "run", problem, "toy", kt.HParams())
    run.create()
    files = {"store_files": problem.store.manifest["files"]}
    run.write_manifest({**files, "tokenizer_sha256": run.tokenizer.fingerprint, "config_hash": run.config_hash})
    for language in ("en", "de"):
        (corpus / f"{split}.{language}").write_text("a b\n", encoding="utf-8")
    run.problem.prepare()
    with pytest.raises(kt.UserError, match="its checksum") if split == "validation" else contextlib.nullcontext():
        run.check_corpus()


def test_metrics_skip_damaged_lines(run):
    (run.path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\xff\xfe\x00\n{"\xff": 1}\n{"step": 2}\n{"ste')
    assert run.metrics() == [{"step": 1}, {"step": 2}]
