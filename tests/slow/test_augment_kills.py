"""Test that `augment` resumes after SIGKILL and writes the same pairs as an uninterrupted process."""

import time

from helpers.commands import spawn

LINES = [f"s{a} s{b} s{c}" for a in range(1, 15) for b in range(1, 15) for c in range(1, 15)]


def test_augment_resumes_after_sigkill(home, call, tmp_path):
    mono = tmp_path / "mono.txt"
    mono.write_text("".join(f"{line}\n" for line in LINES))
    flags = f"--run={home.run}", f"--input={mono}", "--as=back", "--sample"
    killed = tmp_path / "killed.tsv"
    process = spawn("augment", *flags, f"--output={killed}", cwd=tmp_path)
    while not (chunks := list(tmp_path.glob(".killed.tsv.*/*.json"))):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert not killed.exists()
    lines = call("augment", *flags, f"--output={killed}").succeeded()
    assert lines[0].startswith("resuming: ") and f" of {len(LINES):,} lines are already translated" in lines[0]
    assert len(chunks) < 3
    call("augment", *flags, f"--output={tmp_path}/whole.tsv").succeeded()
    assert killed.read_text() == (tmp_path / "whole.tsv").read_text()
    assert not list(tmp_path.glob(".*.tsv*"))
