"""Tests of the command `translate`: flags, unusual input and interruptions."""

import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest
from helpers.commands import spawn
from keras.backend import backend

from keras_transformer.data.corpus import read_lines
from keras_transformer.decoding.translator import Translator

pytestmark = pytest.mark.usefixtures("eager")

LINES = ["s1 s2 s3", "", "s4 s2 s2 s1", "   ", "s5 s6 unknown", "s7"]
HARD = [
    "s1\ts2",
    "s1 \u2028 s2",
    "😀 s1",
    "שלום s2",
    "s1 \x00 s3",
    "s1 \x0c s2",
    " ".join(["s1"] * 10_000),
    "\ufeffs1",
    "s9",
]


@pytest.fixture(scope="module")
def translator(home):
    """Return a translator of the shared run."""
    return Translator.load(home.run)


@pytest.fixture
def translate(home, call, tmp_path, load_once):
    """Return a function that runs `translate` and returns its `Outcome` and output lines."""
    load_once(home.run)

    def translate(lines, *flags, run=home.run):
        (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines), newline="")
        output = tmp_path / "output.txt"
        outcome = call("translate", f"--run={run}", f"--input={tmp_path}/lines.txt", f"--output={output}", *flags)
        return outcome, list(read_lines(output, may_be_empty=True)) if output.exists() else None

    return translate


def texts(results):
    return [hypotheses[0].text for hypotheses in results]


def test_translate_writes_one_line_per_line(translate, translator):
    outcome, lines = translate(HARD, "--max_source_length=9")
    assert outcome.status == 0
    assert lines == texts(translator.translate([*HARD[:6], " ".join(["s1"] * 8), *HARD[7:]]))


def test_translate_applies_repetition_options(translate, translator):
    lines = translate(LINES, "--no_repeat_ngram=1", "--repetition_penalty=2")[1]
    assert lines == texts(translator.translate(LINES, no_repeat_ngram=1, repetition_penalty=2.0))
    assert all(len(set(words)) == len(words) for words in map(str.split, lines))


def test_translate_splits_sentences_and_keeps_lines(translate, translator):
    pytest.importorskip("sentencex")
    outcome, lines = translate(["s1 s2. S3 s4.", "", "s5"], "--split_sentences=en")
    first, second, last = texts(translator.translate(["s1 s2.", "S3 s4.", "s5"]))
    assert (outcome.status, lines) == (0, [f"{first} {second}".strip(), "", last])


def test_translate_truncates_long_lines_with_warning(translate, translator):
    long = "s1 s2 " * 200
    outcome, lines = translate(["s3", long, "s4"])
    assert outcome == (0, "", "line 2: only the first 64 of 401 tokens are translated\n")
    assert len(lines) == 3
    outcome, lines = translate([long], "--max_source_length=3")
    assert "first 3 of 401" in outcome.err and lines == texts(translator.translate(["s1 s2"]))


def test_translate_nbest_lines_start_with_number_and_score(translate, translator):
    outcome, lines = translate(LINES, "--nbest=3", "--scores", "--beam_size=4")
    expected = [
        f"{number}\t{hypothesis.score:.6f}\t{hypothesis.text}"
        for number, hypotheses in enumerate(translator.translate(LINES, 4, nbest=3), start=1)
        for hypothesis in hypotheses
    ]
    assert outcome.succeeded() == [] and lines == expected
    assert translate(LINES, "--nbest=3")[1][0].split("\t")[0] == "1"  # although the run's beam_size is 2


def test_translate_jsonl_holds_all_figures(translate, translator):
    outcome, lines = translate(LINES, "--format=jsonl", "--nbest=2", "--token_scores", "--alignments")
    assert outcome.succeeded() == []
    expected = translator.translate(LINES, nbest=2, token_scores=True, alignments=True)
    for number, (line, source, hypotheses) in enumerate(zip(lines, LINES, expected, strict=True), start=1):
        found = json.loads(line)
        assert (found["line"], found["source"], len(found["hypotheses"])) == (number, source, len(hypotheses))
        for entry, hypothesis in zip(found["hypotheses"], hypotheses):
            assert entry["text"] == hypothesis.text and len(entry["tokens"]) == len(hypothesis.tokens)
            assert entry["score"] == pytest.approx(hypothesis.score, rel=1e-5)
            if hypothesis.tokens:
                assert sum(entry["token_log_probabilities"]) == pytest.approx(hypothesis.log_probability, rel=1e-3)
                assert len(entry["alignment"]) == len(entry["tokens"])


@pytest.mark.parametrize("parts, flags", [(4, ["--nbest=2"]), (9, [])])
def test_translate_shards_add_up(translate, parts, flags):
    shards = [translate(LINES, f"--shard={part}/{parts}", *flags)[1] for part in range(1, parts + 1)]
    assert [line for shard in shards for line in shard] == translate(LINES, *flags)[1]


def test_translate_starts_with_prefixes(translate, translator, tmp_path):
    (tmp_path / "prefixes.txt").write_text("s2\n\n\n\ns1 s1\n\n")
    flag = f"--prefixes={tmp_path}/prefixes.txt"
    outcome, lines = translate(LINES, flag)
    assert outcome.succeeded() == [] and lines[0].startswith("s2") and lines[4].startswith("s1 s1")
    assert lines == texts(translator.translate(LINES, prefixes=["s2", "", "", "", "s1 s1", ""]))
    assert translate(LINES, flag, "--shard=3/3")[1] == lines[4:]
    translate([*LINES, "s1"], flag)[0].refused("prefixes.txt must have as many lines as the input, got 6")
    for shard in ("--shard=1/3", "--shard=1/1"):
        translate([*LINES, "s1"], flag, shard)[0].refused("prefixes.txt must have as many lines as the input, got 6")
        translate(LINES[:4], flag, shard)[0].refused("prefixes.txt must have as many lines as the input (4), got 6")


def test_translate_contains_constraints(translate, translator, tmp_path):
    (tmp_path / "phrases.txt").write_text("s9 s8\ts7\ns1\n\n\ns6\n\n")
    flag = f"--constraints={tmp_path}/phrases.txt"
    outcome, lines = translate(LINES, flag, "--beam_size=5")
    assert outcome.succeeded() == [] and "s9 s8" in lines[0] and "s7" in lines[0].split() and "s6" in lines[4].split()
    phrases = [["s9 s8", "s7"], ["s1"], [], [], ["s6"], []]
    assert lines == texts(translator.translate(LINES, 5, phrases=phrases)) and lines[1] == ""
    assert translate(LINES, flag, "--beam_size=5", "--shard=3/3")[1] == lines[4:]
    translate([*LINES, "s1"], flag)[0].refused("phrases.txt must have as many lines as the input, got 6")
    translate(LINES[:5], flag)[0].refused("line n must contain the phrases of translation n, separated by tabs")
    (tmp_path / "phrases.txt").write_text("\n\nzebra\n\n\n\n")
    translate(LINES, flag)[0].refused("phrases for line 3 must consist of tokens in the vocabulary, got 'zebra'")
    (tmp_path / "phrases.txt").write_text("\n" + "s1 " * 101 + "\n\n\n\n\n")
    translate(LINES, flag)[0].refused("phrases for line 2 must have at most 100 tokens, got 101. Use fewer")


def test_translate_samples_with_a_seed(translate):
    seeds = [translate(LINES, "--sample", f"--seed={seed}", "--temperature=3")[1] for seed in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2]


def test_translate_takes_an_ensemble(translate, home, tmp_path):
    alone = translate(LINES, "--checkpoint=6")[1]
    assert translate(LINES, "--checkpoint=6,6")[1] == alone
    assert translate(LINES, "--checkpoint=6", f"--ensemble={home.run}")[1] == alone
    other = shutil.copytree(home.run, tmp_path / "other")
    (other / "manifest.json").unlink()
    symbols = next(path for path in other.iterdir() if path.name.startswith("symbols"))
    symbols.write_text(symbols.read_text().replace("s7", "other"))
    translate(LINES, f"--ensemble={other}")[0].refused("different vocabularies")


def test_translate_computes_in_bfloat16(translate, home):
    translator = Translator.load(home.run, precision="bfloat16")
    assert translator.model.compute_dtype == "bfloat16"
    outcome, lines = translate(LINES, "--precision=bfloat16", "--min_length=2")
    assert outcome.succeeded() == [] and lines == texts(translator.translate(LINES, min_length=2))
    assert all(len(line.split()) >= 2 for line in lines if line)


@pytest.mark.skipif(backend() == "jax", reason="JAX always compiles")
def test_translate_with_xla_gives_same_lines(translate, translator):
    import tensorflow as tf

    expected = texts(translator.translate(LINES[:3]))
    tf.config.run_functions_eagerly(False)
    outcome, lines = translate(LINES[:3], "--jit_compile")
    assert outcome.succeeded() == [] and lines == expected


def test_translate_rejects_a_pipe_with_shard(home, call):
    reader, writer = os.pipe()
    with open(reader), open(writer, "w") as pipe:
        pipe.write("s1\n")
        pipe.close()
        flags = (f"--run={home.run}", f"--input=/dev/fd/{reader}")
        call("translate", *flags, "--shard=1/1").refused("--input must be a regular file")
        assert call("translate", *flags).status == 0


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_translate_skips_or_replaces_undecodable_lines(home, call, tmp_path, on_error):
    (tmp_path / "lines.txt").write_bytes(b"s1\n\xff s2\ns3\n")
    flags = (f"--input={tmp_path}/lines.txt", f"--on_error={on_error}", "--min_length=2")
    outcome = call("translate", f"--run={home.run}", *flags)
    assert outcome.status == 0 and outcome.err.startswith(f"{tmp_path}/lines.txt:2: not UTF-8 at byte 1 of the line; ")
    assert [bool(line) for line in outcome.out.splitlines()] == [True, on_error == "replace", True]


def test_translate_keeps_lines_before_undecodable_one(home, call, tmp_path):
    with gzip.open(tmp_path / "lines.gz", "wb") as file:
        file.write(b"s1\ns2\n\xff\ns3\n")
    flags = (f"--run={home.run}", f"--input={tmp_path}/lines.gz", f"--output={tmp_path}/out.txt")
    call("translate", *flags).refused("lines.gz:3: not UTF-8", f"the output so far is in {tmp_path}/out.txt.partial")
    kept = (tmp_path / "out.txt.partial").read_text().splitlines()
    assert len(kept) == 2 and not (tmp_path / "out.txt").exists()
    assert call("translate", *flags, "--on_error=skip").status == 0
    assert (tmp_path / "out.txt").read_text().splitlines()[:2] == kept and not (tmp_path / "out.txt.partial").exists()


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--shard=3/2"], "--shard: must be I/N with I from 1 to N, got '3/2'"),
        (["--shard=1/2", "--input=-"], "--input must be a regular file, got stdin. The command reads the file twice"),
        (["--shard=1/2", "--prefixes=-"], "--prefixes must be a regular file"),
        (["--shard=1/2", "--constraints=/dev/null"], "--constraints must be a regular file"),
        (["--top_k=5"], "--top_k needs --sample"),
        (["--sample", "--top_p=1.5"], "--top_p must be at least 1e-6 and at most 1, got 1.5"),
        (["--sample", "--temperature=0"], "--temperature must be at least 1e-6, got 0"),
        (["--token_scores"], "need --format=jsonl"),
        (["--nbest=5", "--beam_size=4"], "--nbest=5 needs --beam_size=5 or more, got 4"),
        (["--no_repeat_ngram=101"], "no_repeat_ngram must be from 0 to 100, got 101"),
        (["--repetition_penalty=0.5"], "--repetition_penalty"),
        (["--split_sentences"], "--split_sentences needs a language, because"),
        (["--split_sentences=en", "--nbest=2"], "--nbest cannot be combined with --split_sentences"),
        (["--max_source_length=1"], "max_source_length must be at least 2"),
        (["--extra_length=-1"], "must be from 0 to 10000"),
        (["--prefixes=nowhere.txt"], "nowhere.txt does not exist"),
        (
            ["--prefixes=-", "--constraints=-"],
            "only one of --input (default stdin), --prefixes and --constraints can be stdin",
        ),
        (["--constraints=nowhere.txt"], "nowhere.txt does not exist"),
        (["--constraints=x", "--sample"], "--constraints cannot be combined with --sample"),
        (["--constraints=x", "--split_sentences=en"], "--constraints cannot be combined with --split_sentences"),
        (["--ensemble=nowhere"], "nowhere"),
    ],
)
def test_translate_rejects_wrong_flags(translate, flags, said):
    outcome, lines = translate(LINES, *flags)
    outcome.refused(said)
    assert lines is None


def interrupted(process):
    """Interrupt a process until it ends, and return its stderr.

    One interrupt may not be enough, because Python ignores a KeyboardInterrupt that is raised in a destructor.
    """
    for _ in range(10):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=10)[1]
    process.kill()
    raise AssertionError("the process ignores ten interrupts")


def test_translate_keeps_whole_lines_after_interrupt(home, tmp_path):
    (tmp_path / "lines.txt").write_text("s1\n" * 300_000)
    output = tmp_path / "out.txt.partial"
    flags = (f"--run={home.run}", f"--input={tmp_path}/lines.txt", f"--output={tmp_path}/out.txt")
    process = spawn("translate", *flags, cwd=home.path)
    while process.poll() is None and not (output.exists() and output.stat().st_size):
        time.sleep(0.1)
    err = interrupted(process)
    assert process.returncode == 130 and str(output) in err
    kept = output.read_text()
    assert kept.endswith("\n") and kept.count("\n") % 1024 == 0 and not (tmp_path / "out.txt").exists()


@pytest.mark.parametrize("command", ["translate", "score"])
def test_output_may_be_a_pipe_or_a_link(home, call, tmp_path, command):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "lines.txt").write_text("s1 s2\ns3\n")
    (tmp_path / "link.txt").symlink_to(tmp_path / "target.txt")
    inputs = {"translate": ["--input"], "score": ["--source", "--target"]}[command]
    flags = [f"--run={home.run}", *(f"{flag}={tmp_path}/lines.txt" for flag in inputs)]
    # The commands do not wait for the reader, because their output fits into the buffer of the pipe.
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert call(command, *flags, f"--output={tmp_path}/pipe").status == 0
    written = os.read(reader, 10_000).decode()
    os.close(reader)
    assert written.count("\n") == 2 and (tmp_path / "pipe").is_fifo()
    assert call(command, *flags, f"--output={tmp_path}/link.txt").status == 0
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "target.txt").read_text() == written
    with tempfile.TemporaryFile("w+") as nameless:
        assert call(command, *flags, f"--output=/dev/fd/{nameless.fileno()}").status == 0
        nameless.seek(0)
        assert nameless.read() == written


def test_translate_exits_quietly_without_reader(home, call, tmp_path, monkeypatch):
    (tmp_path / "lines.txt").write_text("s1\n")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert call("translate", f"--run={home.run}", f"--input={tmp_path}/lines.txt") == (0, "", "")


def test_translate_reports_progress(translate):
    outcome, _ = translate(LINES, "--progress")
    assert outcome.status == 0 and "6 lines" in outcome.err and os.linesep not in outcome.err


@pytest.mark.parametrize("damage", ["best", "all"])
def test_translate_names_valid_checkpoint(translate, home, tmp_path, damage):
    run = shutil.copytree(home.run, tmp_path / "run")
    best = json.loads((run / "checkpoints" / "best.json").read_text())["step"]
    other = {3: 6, 6: 3}[best]
    for step in (best, other) if damage == "all" else (best,):
        (run / "checkpoints" / f"step-{step:09d}" / "weights.npz").write_bytes(b"damaged")
    hint = f"--checkpoint={other} is complete" if damage == "best" else "no checkpoint is complete"
    translate(LINES, run=run)[0].refused("damaged", hint)
