"""Tests of the summary at the start of `train`, and of progress bars and line editing in a terminal."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import threading

import pytest
from helpers.commands import REVERSE, environment

import keras_transformer as kt
from keras_transformer.train import main as train
from keras_transformer.utils.progress import progress_bar


def test_dry_run_prints_summary_and_writes_no_run(call, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_transformer.training.summary.cpu_has_bfloat16", lambda: True)
    flags = (*REVERSE, "--data_dir", tmp_path / "data", "--output_dir", tmp_path / "run", "--train_steps=40")
    out = call("train", *flags, "--dry_run", "--accumulate=2", "--precision=bfloat16").succeeded()
    table = out[out.index(str(tmp_path / "run")) + 1 :]
    assert [line[:12].strip() for line in table] == [
        "problem", "model", "", "batch", "schedule", "devices", "memory", "results", "time", "note",
    ]  # fmt: skip
    rows = [line[12:] for line in table]
    model = kt.Transformer(24, kt.hparams("toy", num_layers=1, d_model=16, d_ff=32, num_heads=2))
    assert rows[0] == "reverse: 500 pairs, 24 tokens in the vocabulary"
    assert rows[1].startswith("transformer, toy: 1 + 1 layers, d_model 16, d_ff 32, 2 heads, post-norm, dropout 0.1")
    parts = {part: int(count.replace(",", "")) for part, count in re.findall(r"(\w+) ([\d,]+)(?:, |$)", rows[2])}
    assert parts == {
        "embedding": 24 * 16,
        "encoder": sum(v.shape.num_elements() for v in model.encoder.trainable_variables),
        "decoder": sum(v.shape.num_elements() for v in model.decoder.trainable_variables),
    }
    assert rows[2].startswith(f"{model.count_params():,} parameters: ") and sum(parts.values()) == model.count_params()
    assert rows[3].startswith("up to 512 source and 512 target tokens per update in 2 micro-batches; ")
    assert (
        rows[4].startswith("40 updates (")
        and f"up to {float(kt.TransformerSchedule(16, 2)(1)):.2e} at update 2," in rows[4]
    )
    assert re.fullmatch(r"\d devices?; tensorflow, bfloat16, no XLA", rows[5])
    assert re.match(r"about \d+ MB for the largest update \(\d+ pairs of ", rows[6])
    assert rows[7] == "validation every 3 updates, a checkpoint every 3, and both at the end"
    assert re.match(r"about 0:0\d:\d\d for the updates: \d\.\de\+\d\d floating point operations at ", rows[8])
    assert rows[9] == (
        "the learning rate is at least twice that of any preset; raise warmup_steps or lower learning_rate_scale"
    )
    assert not (tmp_path / "run").exists() and (tmp_path / "data").exists()


def test_train_prints_summary_and_time_estimate_once(home, call, tmp_path):
    lines = home.outcome.succeeded()
    assert [line for line in lines if line.startswith("  schedule  6 updates")]
    estimates = [i for i, line in enumerate(lines) if line.startswith("  estimated time for all updates: 0:0")]
    assert len(estimates) == 1 and lines[estimates[0] - 1].startswith("step 3/6 ")
    again = call("train", *REVERSE, "--data_dir", home.path / "data", "--output_dir", home.run, "--train_steps=6",
                 "--dry_run").succeeded()  # fmt: skip
    assert len(again) == 1 and "finished after 6 updates" in again[0]


@pytest.mark.parametrize(
    "flags, said",
    [
        (
            ["--warmup_steps=500", "--train_steps=400"],
            "the learning rate rises until the end, because warmup_steps is 500",
        ),
        (["--warmup_steps=4000", "--train_steps=100000"], "the corpus is small for this number of updates"),
        (["--warmup_steps=4000", "--train_steps=4001"], None),
    ],
)
def test_summary_warns_of_unusual_schedules(call, tmp_path, flags, said):
    lines = call("train", *REVERSE, *flags, f"--data_dir={tmp_path}/data", f"--output_dir={tmp_path}/run", "--dry_run")
    notes = [line for line in lines.succeeded() if line.startswith("  note ")]
    assert len(notes) == (said is not None) and (not notes or said in notes[0])


def test_summary_estimates_time_on_cpu_only(call, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_transformer.training.summary.on_cpu", lambda: False)
    lines = call("train", *REVERSE, f"--data_dir={tmp_path}/data", f"--output_dir={tmp_path}/run", "--dry_run")
    titles = [line[:12].strip() for line in lines.succeeded()]
    assert "results" in titles and "time" not in titles


@pytest.mark.parametrize(
    "has, precision, hint",
    [
        (True, "float32", "this CPU has bfloat16 instructions: --precision=bfloat16 is faster"),
        (True, "bfloat16", None),
        (False, "float32", None),
        (False, "bfloat16", "this CPU has no bfloat16 instructions: --precision=float32 is faster"),
        (None, "bfloat16", None),
    ],
)
def test_train_recommends_the_faster_precision(call, tmp_path, monkeypatch, has, precision, hint):
    monkeypatch.setattr("keras_transformer.training.summary.cpu_has_bfloat16", lambda: has)
    flags = [f"--precision={precision}", f"--data_dir={tmp_path}/data", f"--output_dir={tmp_path}/run", "--dry_run"]
    lines = [line.strip() for line in call("train", *REVERSE, *flags).succeeded()]
    assert [line for line in lines if line.startswith("this CPU has")] == [hint] * (hint is not None)


def in_terminal(monkeypatch, main, *arguments):
    """Run a command whose stdout and stderr are a pseudo-terminal. Return its output."""
    own, its = pty.openpty()
    written = []

    def read():
        with contextlib.suppress(OSError):  # reading fails after the terminal is closed
            while part := os.read(own, 1 << 16):
                written.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    monkeypatch.setenv("TERM", "xterm")
    with open(its, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(sys, "stderr", terminal)
        main(list(map(str, arguments)))
    reader.join()
    os.close(own)
    return b"".join(written).decode()


@pytest.mark.usefixtures("eager")
def test_train_shows_progress_bars_in_terminal(home, tmp_path, monkeypatch):
    written = in_terminal(monkeypatch, train, *home.again(tmp_path / "run"), "--train_steps=4")
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written)
    assert re.search(r"training\s.*4/4 .*updates/s", plain) and re.search(r"validation\s.*/200", plain)
    assert re.search(r"[\r\n]step 3/4  loss", plain) and f"the run is in {tmp_path}/run" in plain
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1  # hide and show the cursor


def test_translate_answers_typed_lines_with_history(home):
    (expected,) = {kt.Translator.load(home.run).translate("s1 s2 s3")}
    own, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_transformer.translate", f"--run={home.run}"],
        env={**environment(home.path), "TERM": "dumb"}, stdin=its, stdout=its, stderr=its, start_new_session=True,
    )  # fmt: skip
    os.close(its)
    written = ""

    def after(typed):
        """Send keystrokes. Return the lines that the command writes until it shows a prompt or exits."""
        nonlocal written
        os.write(own, typed)
        begin = len(written)
        with contextlib.suppress(OSError):  # reading fails after the command exits
            while not written[begin:].endswith("> ") and (part := os.read(own, 1 << 16)):
                written += part.decode()
        return [line.strip() for line in written[begin:].splitlines()]

    assert after(b"")[0].startswith("Type a line and press Enter to translate it.")
    assert after(b"s1 s2 s3\n")[1] == expected
    assert after(b"\x1b[A\n")[1] == expected  # the up arrow recalls the last line
    after(b"\x04")
    assert process.wait(60) == 0
    os.close(own)


def test_summary_shows_peak_rate_within_warmup(call, tmp_path):
    flags = (*REVERSE, "--data_dir", tmp_path / "data", "--output_dir", tmp_path / "run", "--warmup_steps=400")
    out = call("train", *flags, "--dry_run", "--train_steps=40").succeeded()
    (schedule,) = [line for line in out if line.startswith("  schedule")]
    assert schedule.endswith(f"up to {float(kt.TransformerSchedule(16, 400)(39)):.2e} at update 40")


def test_progress_bar_is_hidden_without_terminal(capsys):
    with progress_bar("work", 3) as advance:
        advance(2)
        print("line")
    assert capsys.readouterr() == ("line\n", "")


def test_progress_bar_ends_after_exception(monkeypatch, capsys):
    from keras_transformer.utils import progress

    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    with pytest.raises(ZeroDivisionError):
        with progress_bar("outer", 3) as advance, progress_bar("inner", 2):
            advance(1)
            assert len(progress._terminal.tasks) == 2
            raise ZeroDivisionError
    assert progress._terminal is None
