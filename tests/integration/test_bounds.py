"""Tests of flag values that are too large and files that are too long."""

from pathlib import Path

import numpy as np
import pytest
from helpers.commands import REVERSE

from keras_transformer.config.hparams import HParams, field_types
from keras_transformer.decoding.search_options import SearchOptions
from keras_transformer.distributed.cluster import Coordinator
from keras_transformer.runs.checkpoint import Checkpoints
from keras_transformer.training import memory
from keras_transformer.utils.errors import UserError
from keras_transformer.visualization.attention import Tokens

NUMBERS = [name for name, (kind, _) in field_types(HParams).items() if kind in (int, float)]
HUGE = "1" + "0" * 99


@pytest.mark.parametrize("name", NUMBERS)
def test_hparams_have_an_upper_bound(call, tmp_path, name):
    call("train", *REVERSE, f"--data_dir={tmp_path}", f"--{name}={HUGE}").refused(name, "must be")
    with pytest.raises(UserError, match=name):
        HParams(**{name: float("1e99") if field_types(HParams)[name][0] is float else 10**20})


@pytest.mark.parametrize(
    ("command", "flags", "name"),
    [
        ("train", REVERSE, "accumulate=1000000"),
        ("train", REVERSE, "learning_rate_scale=0"),
        ("train", REVERSE, "worker_patience=" + HUGE),
        ("train", REVERSE, "set=problem.train_pairs=" + HUGE),
        ("translate", ["--run=r"], "beam_size=100000"),
        ("translate", ["--run=r"], "extra_length=" + HUGE),
        ("translate", ["--run=r", "--sample"], "top_k=" + HUGE),
        ("translate", ["--run=r", "--sample"], "temperature=1e99"),
        ("translate", ["--run=r"], "max_source_length=" + 5000 * "9"),
        ("evaluate", ["--run=r"], "alpha=1e99"),
        ("evaluate", ["--run=r"], "samples=" + HUGE),
        ("score", ["--run=r", "--source=s", "--target=t"], "alpha=1e99"),
        ("score", ["--run=r", "--source=s", "--target=t"], "max_length=" + HUGE),
        ("average", ["--run=r"], "last=" + HUGE),
        ("export", ["--run=r", "--format=saved_model", "--output_dir=o"], "max_beam_size=100000"),
        ("serve", ["--run=r"], "max_waiting=" + HUGE),
        ("serve", ["--run=r"], "beam_size=100000"),
        ("cost", [], "length=" + HUGE),
        ("cost", [], "hours=1e300"),
        ("visualize", ["--output_dir=o", "--run=r", "--text=a"], "layer=" + HUGE),
        ("trees", [], "number=" + HUGE),
    ],
)
def test_flags_have_bounds(call, tmp_path, monkeypatch, command, flags, name):
    monkeypatch.chdir(tmp_path)
    call(command, *flags, f"--{name}").refused(name.removeprefix("set=problem.").partition("=")[0])


def test_search_options_bound_beam_size():
    with pytest.raises(UserError, match="beam_size must be at most 1,000, got 100000"):
        SearchOptions(beam_size=100_000)


def test_translate_rejects_more_prefixes_than_lines(call, home, tmp_path):
    (tmp_path / "lines").write_text("s1\ns2\n")
    (tmp_path / "prefixes").write_text("s1\n\n\n")
    flags = (f"--run={home.run}", f"--input={tmp_path}/lines", f"--prefixes={tmp_path}/prefixes")
    call("translate", *flags).refused("prefixes must have as many lines as the input (2), got 3")


def test_train_rejects_model_larger_than_memory_on_cpu(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    large = ("--d_model=65536", "--d_ff=1024", "--num_layers=1000")
    outcome = call("train", *REVERSE, "--set", "problem.train_pairs=50", *large, "--dry_run")
    outcome.refused("the weights need about ", "GB of memory, but only 1.0 GB is free")
    assert not Path("runs").exists()
    monkeypatch.setattr(memory, "available_bytes", lambda: None)  # unknown, as on accelerators and outside Linux
    memory.check_weights(HParams(d_model=65_536, d_ff=1024, num_layers=1000), 1000)


NO_STEPS = ["", "²", "٣", "6,", 5000 * "9"]


@pytest.mark.parametrize("name", NO_STEPS)
def test_checkpoint_names_are_checked(tmp_path, name):
    with pytest.raises(UserError, match="must be best, last, averaged, ema or a step"):
        Checkpoints(tmp_path).load(name)


@pytest.mark.parametrize("port", ["0", "²", "65536", 5000 * "9"])
def test_coordinator_ports_are_checked(port):
    with pytest.raises(UserError, match="with a port from 1 to 65535"):
        Coordinator(f"host:{port}", 2, 0)


def test_word_numbers_are_checked():
    tokens = Tokens(("a", "b"), ("a", "b"), np.arange(2))
    assert [tokens.find(number) for number in "12"] == [0, 1]
    for number in ("0", "3", "²", 5000 * "9"):
        with pytest.raises(UserError, match="word must be a number from 1 to 2 or one of a b"):
            tokens.find(number)


def test_prepare_rejects_missing_raw_dir(call, tmp_path):
    flags = ("--problem=reverse", "--set=problem.train_pairs=50", f"--data_dir={tmp_path}/data")
    call("prepare", *flags, f"--raw_dir={tmp_path}/missing").refused("--raw_dir must be a folder, got", "missing")
