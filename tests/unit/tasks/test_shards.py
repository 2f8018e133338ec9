"""Tests of `prepare --shard`: the merged corpus equals one prepared without shards, and errors name faulty shards."""

import errno
import random
import shutil
import threading
from pathlib import Path

import pytest
from helpers.logs import logged_lines

import keras_transformer as kt
from keras_transformer import prepare
from keras_transformer.data import encoding
from keras_transformer.data.token_store import VERIFIED
from keras_transformer.tasks.prepared_corpus import corpus_state
from keras_transformer.tasks.shards import merge_shards, prepare_shard, shards_dir
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import work_directory


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 7)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Return a folder with parallel text."""
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(1)
    for split, count in (("train", 120), ("validation", 15), ("test", 5)):
        for language in ("en", "de"):
            lines = [" ".join(rng.choices(["Haus", "Baum", "tree", "house", "a", "b"], k=4)) for _ in range(count)]
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    return folder


def problem_of(corpus, data_dir, **settings):
    return kt.problem("parallel_text", raw_dir=str(corpus), data_dir=str(data_dir), **settings)


def contents(problem):
    """Return the files of a prepared corpus as {name: content}."""
    return {path.name: path.read_bytes() for path in problem.prepared_dir.iterdir() if path.name != VERIFIED}


@pytest.mark.parametrize(
    "settings",
    [{"vocab_size": 40, "drop_duplicates": True}, {"vocab_size": 40, "bpe_dropout": 0.1, "num_segmentations": 2}],
)
def test_shards_make_the_corpus_of_one_process(corpus, tmp_path, settings):
    expected = problem_of(corpus, tmp_path / "one", **settings).prepare()
    problem = problem_of(corpus, tmp_path / "shards", **settings)
    assert [prepare_shard(problem, number, 3) for number in (2, 3)] == [False, False]
    shards = shards_dir(problem)
    written = {number: {*shards.glob(f"{number}-of-3/train.*.npz")} for number in (2, 3)}
    assert len(written[2]) > 2 and len(written[3]) > 2
    assert prepare_shard(problem, 1, 3)
    assert contents(problem) == contents(expected)
    assert problem.store.fingerprint == expected.store.fingerprint
    assert [path.name for path in (tmp_path / "shards").iterdir()] == [problem.prepared_dir.name]
    assert prepare_shard(problem, 1, 3) and not shards.exists()


def test_merge_encodes_nothing(corpus, tmp_path, monkeypatch):
    problem = problem_of(corpus, tmp_path, vocab_size=40)
    prepare_shard(problem, 1, 2)
    monkeypatch.setattr("keras_transformer.tasks.shards.merge_shards", lambda problem: None)
    prepare_shard(problem, 2, 2)
    monkeypatch.setattr(encoding, "write_chunk", lambda *arguments: pytest.fail("a chunk was encoded again"))
    merge_shards(problem)
    assert problem.is_prepared()


def test_shard_resumes_after_an_interruption(corpus, tmp_path, monkeypatch):
    problem, original, written = problem_of(corpus, tmp_path, vocab_size=40), encoding.write_chunk, []

    def write(path, *arguments):
        written.append(path.name)
        if len(written) == 4:
            raise KeyboardInterrupt
        return original(path, *arguments)

    monkeypatch.setattr(encoding, "write_chunk", write)
    with pytest.raises(KeyboardInterrupt):
        prepare_shard(problem, 1, 2)
    assert not (shards_dir(problem) / "1-of-2").exists()
    prepare_shard(problem, 1, 2)
    assert written[3] == written[4] and len({*written}) == len(written) - 1


def test_simultaneous_shards_learn_one_vocabulary(corpus, tmp_path):
    problems = [problem_of(corpus, tmp_path, vocab_size=40) for _ in range(4)]
    with logged_lines() as lines:
        threads = [threading.Thread(target=prepare_shard, args=(one, i, 4)) for i, one in enumerate(problems, start=1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert problems[0].is_prepared()
    assert sum("learning the vocabulary" in line for line in lines) == 1


def test_merge_names_faulty_shards(corpus, tmp_path):
    problem, other = (problem_of(corpus, tmp_path / name, vocab_size=40) for name in "ab")
    other.make_tokenizer = problem_of(corpus, tmp_path, vocab_size=41).make_tokenizer
    shards = shards_dir(problem)
    with pytest.raises(UserError, match=r"has no shards of parallel_text; .* --shard=1/N"):
        merge_shards(problem)
    prepare_shard(problem, 1, 3)
    with pytest.raises(UserError, match=r"lacks 2 of 3 shards: 2-of-3, 3-of-3; .* with `prepare --shard=2/3`"):
        merge_shards(problem)
    with pytest.raises(
        UserError,
        match="already contains shards from --shard=I/[34], not from --shard=I/[34]; use --shard=I/[34]",
    ):
        prepare_shard(problem, 1, 4)
    prepare_shard(problem, 2, 3)
    prepare_shard(other, 3, 3)
    shutil.copytree(shards_dir(other) / "3-of-3", shards / "3-of-3")
    with pytest.raises(UserError, match=r"shard .*3-of-3 has a different vocabulary .* `prepare --shard=3/3` again"):
        merge_shards(problem)
    shutil.rmtree(shards / "3-of-3")
    next((shards / "2-of-3").glob("train.*.npz")).unlink()
    prepare_shard_of_copy(problem, shards)
    with pytest.raises(UserError, match=r"shard .*2-of-3 is damaged, because train\..*npz is missing; remove"):
        merge_shards(problem)
    assert not problem.is_prepared()


def prepare_shard_of_copy(problem, shards):
    """Prepare shard 3 while shard 1 is hidden, so that the completion of shard 3 does not start the merge."""
    moved = shards.with_name("moved")
    (shards / "1-of-3").rename(moved)
    prepare_shard(problem, 3, 3)
    moved.rename(shards / "1-of-3")


def test_shard_of_changed_corpus_raises(corpus, tmp_path):
    raw = tmp_path / "raw"
    shutil.copytree(corpus, raw)
    problem = problem_of(raw, tmp_path / "data", vocab_size=40)
    prepare_shard(problem, 1, 2)
    with open(raw / "train.en", "a") as source, open(raw / "train.de", "a") as target:
        source.write("a tree\n")
        target.write("ein Baum\n")
    with pytest.raises(
        UserError, match=r"shard .*1-of-2 was made from different corpus files; remove .*1-of-2 and run"
    ):
        prepare_shard(problem, 1, 2)
    shutil.rmtree(shards_dir(problem) / "1-of-2")
    assert [prepare_shard(problem, number, 2) for number in (1, 2)] == [False, True]
    assert contents(problem) == contents(problem_of(raw, tmp_path / "one", vocab_size=40).prepare())


def test_merge_resumes_after_an_interrupted_copy(corpus, tmp_path, monkeypatch):
    def no_links(source, target):
        raise OSError(errno.EPERM, "the file system does not support hard links")

    def write_half(source, target):
        content = Path(source).read_bytes()
        Path(target).write_bytes(content[: len(content) // 2])
        raise KeyboardInterrupt

    problem = problem_of(corpus, tmp_path / "shards", vocab_size=40)
    prepare_shard(problem, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr("os.link", no_links)
        patch.setattr("shutil.copyfile", write_half)
        with pytest.raises(KeyboardInterrupt):
            prepare_shard(problem, 2, 2)
    merge_shards(problem)
    assert contents(problem) == contents(problem_of(corpus, tmp_path / "one", vocab_size=40).prepare())


def test_merge_ignores_files_of_an_interrupted_preparation(corpus, tmp_path, monkeypatch):
    problem, other = (problem_of(corpus, tmp_path / name, vocab_size=40) for name in ("shards", "one"))
    expected = other.prepare()
    prepare_shard(problem, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr("keras_transformer.tasks.shards.merge_shards", lambda problem: None)
        prepare_shard(problem, 2, 2)
    tokenizer = problem_of(corpus, tmp_path, vocab_size=41).make_tokenizer()
    with work_directory(problem.prepared_dir, corpus_state(problem)[1]) as work:
        work.keep = True
        tokenizer.save(work.folder)
    merge_shards(problem)
    assert contents(problem) == contents(expected)


def test_prepare_command_writes_and_merges_shards(corpus, tmp_path, capsys):
    flags = [
        "--problem=parallel_text",
        f"--raw_dir={corpus}",
        f"--data_dir={tmp_path}",
        "--set",
        "problem.vocab_size=40",
    ]
    prepare.main([*flags, "--shard=2/2"])
    assert "shard 2 of 2 of parallel_text is in " in capsys.readouterr().out
    prepare.main([*flags, "--shard=1/2"])
    assert "parallel_text is prepared in " in capsys.readouterr().out
    prepare.main([*flags, "--merge", "--verify"])
    assert "all checksums match" in capsys.readouterr().out
    with pytest.raises(UserError, match="--shard cannot be combined with --merge, --report or --verify"):
        prepare.main([*flags, "--shard=1/2", "--report"])


def test_prepare_command_warns_once_after_merging(corpus, tmp_path, call):
    for language in ("en", "de"):
        for split in ("train", "validation"):
            shutil.copy(corpus / f"train.{language}", tmp_path / f"{split}.{language}")
    flags = ["--problem=parallel_text", f"--raw_dir={tmp_path}", "--set", "problem.vocab_size=40"]
    lines = call("prepare", "--shard=1/1", f"--data_dir={tmp_path}/data", *flags).succeeded()
    assert sum(line.startswith("warning: the training text contains") for line in lines) == 1
