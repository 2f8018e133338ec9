"""Tests of the cache of converted models in a run directory."""

import json
import shutil
import zlib

import pytest

from keras_transformer.conversion import cache
from keras_transformer.runs.run import Run

pytest.importorskip("ctranslate2")


@pytest.fixture
def run(home, tmp_path):
    ignored = shutil.ignore_patterns("ctranslate2")  # other tests may have cached models in this run
    return Run.open(shutil.copytree(home.run, tmp_path / "run", ignore=ignored))


@pytest.fixture
def conversions(monkeypatch):
    """List of the arguments of each conversion during the test."""
    convert, made = cache.convert, []
    monkeypatch.setattr(cache, "convert", lambda *arguments: (made.append(arguments), convert(*arguments)))
    return made


def test_cache_converts_each_checkpoint_once(run, conversions):
    first, other = cache.converted_files(run, "3"), cache.converted_files(run, "6")
    assert cache.converted_files(run, "3") == first and cache.converted_files(run, 6) == other
    assert len(conversions) == 2 and first.keys() == other.keys() >= {"model.bin"} and first != other
    assert (run.path / "ctranslate2" / "3" / "model.bin").read_bytes() == first["model.bin"]


def truncate(folder):
    (folder / "model.bin").write_bytes((folder / "model.bin").read_bytes()[:-1])


def change_version(folder):
    description = json.loads((folder / "cache.json").read_text())
    (folder / "cache.json").write_text(json.dumps({**description, "version": -1}))


@pytest.mark.parametrize(
    "damage",
    [truncate, change_version, lambda folder: (folder / "config.json").unlink(),
     lambda folder: (folder / "cache.json").write_text("{")],
    ids=["truncated", "version", "missing file", "description"],
)  # fmt: skip
def test_cache_rebuilds_damaged_files(run, conversions, caplog, damage):
    first = cache.converted_files(run, "last")
    damage(run.path / "ctranslate2" / "last")
    assert cache.converted_files(run, "last") == cache.converted_files(run, "last") == first
    assert len(conversions) == 2 and not caplog.records


def test_cache_follows_the_checkpoint(run, conversions):
    old = cache.converted_files(run, "last")
    shutil.rmtree(run.path / "checkpoints" / "step-000000006")
    new = cache.converted_files(run, "last")
    assert new == cache.converted_files(run, "3") != old


def test_cache_of_last_skips_damaged_weights(run, conversions):
    weights = run.path / "checkpoints" / "step-000000006" / "weights.npz"
    content = weights.read_bytes()
    weights.write_bytes(content[:-9])
    checksums = [zlib.crc32(cache.converted_files(run, name)["model.bin"]) for name in ("last", "3", "last")]
    weights.write_bytes(content)
    assert len(conversions) == 2
    checksums += [zlib.crc32(cache.converted_files(run, name)["model.bin"]) for name in ("last", "6", "last")]
    assert checksums == 3 * checksums[:1] + 3 * checksums[-1:] and len(set(checksums)) == 2


def test_cache_is_not_kept_if_unwritable(run, conversions, caplog):
    (run.path / "ctranslate2").write_text("in the way")
    assert cache.converted_files(run).keys() == cache.converted_files(run).keys()
    assert len(conversions) == 2 and "cannot cache the converted CTranslate2 model" in caplog.text
