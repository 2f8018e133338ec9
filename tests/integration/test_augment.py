"""Tests of the command `augment`, and of `parallel_text` with augmented training pairs."""

import gzip

import pytest
from helpers.commands import TEXT, write_text

from keras_transformer.data.corpus import read_lines

LINES = [f"s{first} s{second}" for first in range(1, 9) for second in range(1, 4)]


@pytest.fixture
def mono(tmp_path):
    """Return a compressed text file with one duplicate line and one blank line."""
    path = tmp_path / "mono.gz"
    path.write_bytes(gzip.compress("\n".join([*LINES, LINES[0], "", "s2"]).encode()))
    return path


def test_augment_writes_pairs_that_parallel_text_reads(home, call, mono, tmp_path):
    folder = tmp_path / "text"
    flags = [*write_text(folder, TEXT), "--set=problem.vocab_size=100"]
    write_text(folder, {"en": "en 1 en\n", "de": "de 1 de\n"}, "validation")
    (line,) = call(
        "augment", f"--run={home.run}", f"--input={mono}", "--as=back", "--sample", "--tag=<bt>",
        f"--output={folder}/back.tsv",
    ).succeeded()  # fmt: skip
    pairs = [row.split("\t") for row in read_lines(folder / "back.tsv")]
    rejected = len(LINES) + 1 - len(pairs)  # some samples of a barely trained model are empty
    assert line.endswith(f"skipped 1 blank, 1 repeated and {rejected} too long or untranslatable lines")
    targets = [target for _, target in pairs]
    assert targets == [text for text in [*LINES, "s2"] if text in targets] and len(targets) > 5
    assert all(source.startswith("<bt> s") for source, _ in pairs)
    out = call("prepare", *flags, "--set=problem.train=train,back.tsv:2").succeeded()
    assert any(f"{300 + 2 * len(pairs):,} " in row for row in out), out


def test_augment_samples_the_same_pairs_in_shards(home, call, mono, tmp_path):
    flags = (f"--run={home.run}", f"--input={mono}", "--as=forward", "--sample", "--nbest=2", "--top_k=5")
    call("augment", *flags, f"--output={tmp_path}/all.tsv").succeeded()
    for part in (1, 2):
        call("augment", *flags, f"--output={tmp_path}/{part}.tsv", f"--shard={part}/2").succeeded()
    whole, *parts = (list(read_lines(tmp_path / f"{name}.tsv")) for name in ("all", 1, 2))
    assert sorted(whole) == sorted(parts[0] + parts[1]) and all(parts)
    assert len(whole) > len(LINES) + 1  # some lines got two different samples


def test_augment_translates_with_ctranslate2(home, call, mono, tmp_path):
    pytest.importorskip("ctranslate2")
    flags = (f"--run={home.run}", f"--input={mono}", "--as=forward", "--engine=ctranslate2")
    for name in ("first", "second"):
        call("augment", *flags, "--sample", f"--output={tmp_path}/{name}.tsv").succeeded()
    pairs, again = ([row.split("\t") for row in read_lines(tmp_path / f"{name}.tsv")] for name in ("first", "second"))
    assert pairs == again and len(pairs) > 5 and {source for source, _ in pairs} <= {*LINES, "s2"}
    call("augment", *flags, f"--output={tmp_path}/third.tsv", "--precision=bfloat16").refused(
        "engine ctranslate2 does not support precision=bfloat16"
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--as=backward"], "invalid choice: 'backward'"),
        (["--as=back", "--shard=3/2"], "must be I/N with I from 1 to N, got '3/2'"),
        (["--as=back", "--seed=2"], "--seed needs --sample"),
        (["--as=back", "--nbest=3", "--beam_size=2"], "nbest must be from 1 to beam_size"),
        (["--as=back", "--checkpoint=4"], "available steps: 3, 6"),
        (["--as=back", "--output=pairs.txt"], "must end in .tsv, got pairs.txt"),
        (["--as=back", "--input=missing.gz"], "missing.gz does not exist"),
    ],
)
def test_augment_rejects_wrong_flags(home, call, mono, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    call("augment", f"--run={home.run}", f"--input={mono}", "--output=pairs.tsv", *flags).refused(message)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mono.gz"]
