"""Tests of commands that translate with CTranslate2: imported modules, translations, result rows and errors."""

import json
import shutil
import subprocess
import sys

import pytest
from helpers.commands import environment

import keras_transformer as kt

pytest.importorskip("ctranslate2")
pytestmark = pytest.mark.usefixtures("eager")

LINES = ["s1 s2 s3", "", "s4 s2 s2 s1", "s7"]
WITHOUT_KERAS = """
import runpy, sys
sys.modules.update(dict.fromkeys(["keras", "tensorflow", "jax", "torch"]))  # importing one of them fails
runpy.run_module("keras_transformer.translate", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def run(home, tmp_path):
    return shutil.copytree(home.run, tmp_path / "run")


def greedy(run, **options):
    return [best.text for (best,) in kt.Translator.load(run, **options).translate(LINES, beam_size=1)]


def test_translate_with_ctranslate2_imports_no_keras(run, tmp_path):
    flags = [f"--run={run}", "--engine=auto", "--beam_size=1", "--no-progress"]
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_KERAS, *flags], input="".join(f"{line}\n" for line in LINES), cwd=tmp_path,
        env=environment(tmp_path), capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert process.stderr == "translating with CTranslate2; use --engine=keras for Keras\n"
    assert process.stdout.splitlines() == greedy(run) == greedy(run, engine="ctranslate2")
    assert (run / "ctranslate2" / "best" / "model.bin").is_file()


def test_translate_names_options_of_keras(run, call, tmp_path):
    (tmp_path / "lines").write_text("s1\n")
    flags = f"--run={run}", "--engine=ctranslate2", f"--input={tmp_path}/lines"
    for option in ("--alignments", "--max_source_length=2000", "--precision=bfloat16", f"--ensemble={run}",
                   f"--constraints={tmp_path}/lines"):  # fmt: skip
        call("translate", *flags, "--format=jsonl", option).refused("engine ctranslate2 does not support", "keras.")
    lines = call("translate", *flags, "--sample", "--seed=3").succeeded()
    assert lines == call("translate", *flags, "--sample", "--seed=3").succeeded()


def test_evaluate_records_the_engine(run, call, tmp_path):
    results = tmp_path / "rows.jsonl"
    for engine in ("keras", "ctranslate2"):
        call("evaluate", f"--run={run}", f"--engine={engine}", "--beam_size=1", f"--results={results}").succeeded()
    own, other = map(json.loads, results.read_text().splitlines())
    assert (
        other["decoding"] == {**own["decoding"], "engine": "ctranslate2"} and own["exact_match"] == other["exact_match"]
    )
