"""Tests of the token store: writing, damaged files, batches, and when `prepare` builds a new store."""

import functools
import gzip
import json
import os
import shutil

import numpy as np
import pytest
from helpers.errors import complaint
from helpers.logs import logged_lines
from helpers.sample_text import SYMBOLS, sentences
from helpers.stores import new_store
from hypothesis import given
from hypothesis import strategies as st

import keras_transformer as kt
from keras_transformer.config.hparams import HParams
from keras_transformer.data import token_store
from keras_transformer.data.batch_plan import BatchPlan
from keras_transformer.data.columns import BLOCK, CHUNK, allocate_column
from keras_transformer.data.token_batches import TokenBatches
from keras_transformer.data.token_store import TokenStore
from keras_transformer.data.tokenizers.symbols import SymbolTokenizer
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import sha256

PAD, EOS, BOS, UNK = 0, 1, 2, 3


def snapshot(folder):
    """Return {name: (modification time, content)} of the files in a folder."""
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


# The store

rows = st.lists(st.tuples(*[st.lists(st.integers(4, SYMBOLS.vocab_size - 1))] * 2))


def store_of(path, reverse=False, **splits):
    """Write splits, each a list of pairs of ids, to a store. Return the opened store."""
    texts = {name: [tuple(SYMBOLS.decode(pair)) for pair in pairs] for name, pairs in splits.items()}
    new_store(path, texts, SYMBOLS)
    return TokenStore(path, reverse=reverse)


def content(sequences):
    return [list(map(int, sequences[i])) for i in range(len(sequences))]


@given(train=rows, test=rows)
def test_store_round_trip(tmp_path_factory, train, test):
    store = store_of(tmp_path_factory.mktemp("store") / "store", train=train, test=test)
    for name, pairs in (("train", train), ("test", test)):
        split = store.split(name)
        for side, ids in ((split.source, [s for s, _ in pairs]), (split.target, [t for _, t in pairs])):
            assert content(side) == [[*row, EOS] for row in ids]
            assert side.lengths.tolist() == [len(row) + 1 for row in ids]
        assert len(split) == store.manifest["splits"][name]["pairs"] == len(pairs)


@pytest.mark.parametrize("size", [100, 70_000])
def test_store_uses_smallest_id_dtype(tmp_path, size):
    tokenizer = SymbolTokenizer([f"s{i}" for i in range(size)])
    store = new_store(tmp_path / "store", {"train": [(f"s{size - 1}", "s0")]}, tokenizer)
    assert content(store.split("train").source) == [[size + 3, EOS]]
    assert (store.path / "train.source.ids").stat().st_size == 2 * (2 if size == 100 else 4)


def test_reversed_store_swaps_sides(tmp_path):
    split = store_of(tmp_path / "store", reverse=True, train=[([4], [5, 6])]).split("train")
    assert (content(split.source), content(split.target)) == ([[5, 6, EOS]], [[4, EOS]])


def test_store_rejects_unknown_split(tmp_path):
    assert "no split 'test'" in complaint(store_of(tmp_path / "store", train=[([4], [5])]).split, "test")


@pytest.mark.parametrize(
    "name", ["train.source.ids", "train.target.offsets", "train.order", "train.groups", "train.order.crc"]
)
@pytest.mark.parametrize("damage", ["shorter", "gone"])
def test_store_names_damaged_file(tmp_path, name, damage):
    store = store_of(tmp_path / "store", train=[([4, 5, 6], [7])] * 3)
    path = store.path / name
    path.write_bytes(path.read_bytes()[:-1]) if damage == "shorter" else path.unlink()
    assert complaint(store.split, "train").startswith(f"{path} is missing or damaged; remove {store.path}")


def flip_bit(path, position):
    """Flip a bit of a file but keep its size and modification time, like a failing disk."""
    status, content = path.stat(), bytearray(path.read_bytes())
    content[position] ^= 4
    with open(path, "r+b") as file:
        file.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def large(tmp_path):
    """A store in which each column has several chunks."""
    random = np.random.default_rng(0)
    rows = [[random.integers(4, SYMBOLS.vocab_size, random.integers(1, 9)) for _ in range(2)] for _ in range(3_000)]
    return store_of(tmp_path / "store", train=rows)


@pytest.mark.parametrize("name", ["source.ids", "target.ids", "source.offsets", "order", "groups"])
def test_flipped_bit_is_named_before_a_batch_contains_it(large, name):
    position = (large.path / f"train.{name}").stat().st_size - 3
    flip_bit(large.path / f"train.{name}", position)
    first = position // CHUNK * CHUNK
    with pytest.raises(UserError, match=rf"train.{name} is damaged in bytes {first:,} to .* run `prepare` again"):
        split = TokenStore(large.path).split("train")  # fails for `groups`, because `split` reads this whole column
        assert name != "groups"
        batches = TokenBatches(split, BatchPlan(split.index, 2_000))
        for index in range(batches.batches_per_epoch):
            batches[index]


@pytest.mark.backend
def test_fit_names_a_flipped_bit(large):
    flip_bit(large.path / "train.source.ids", 3)
    split = TokenStore(large.path).split("train")
    hparams = HParams(num_layers=1, d_model=8, d_ff=8, num_heads=1)
    model = kt.Transformer.from_hparams(hparams, vocab_size=SYMBOLS.vocab_size)
    model.compile(**kt.compile_arguments(hparams))
    batches = TokenBatches(split, BatchPlan(split.index, 40_000, max_shapes=1))
    for run in (model.fit, model.evaluate):
        with pytest.raises(UserError, match=r"train.source.ids is damaged in bytes 0 to 4,095; remove"):
            run(batches, verbose=0)


def test_opening_reads_checksums_only_of_new_files(large, monkeypatch):
    read = []
    monkeypatch.setattr(token_store, "sha256", lambda path: read.append(path.name) or sha256(path))
    TokenStore(large.path).split("train")
    assert read == []
    copy = large.path.parent / "copy"
    shutil.copytree(large.path, copy)
    for _ in range(2):
        TokenStore(copy).split("train")
    assert sorted(read) == sorted(name for name in large.manifest["files"])


def test_copy_with_a_flipped_bit_is_not_opened(large):
    copy = large.path.parent / "copy"
    shutil.copytree(large.path, copy)
    flip_bit(copy / "train.source.ids", 9)
    assert "train.source.ids is missing or damaged" in complaint(TokenStore(copy).split, "train")


def test_store_verify_reads_all_checksums(large):
    large.verify()
    flip_bit(large.path / "train.target.offsets", 99)
    TokenStore(large.path).split("train")
    assert "train.target.offsets is missing or damaged" in complaint(TokenStore(large.path).verify)


def test_allocate_column_needs_no_posix_fallocate(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate", raising=False)  # missing on macOS
    column = allocate_column(tmp_path / "column", "uint16", BLOCK)
    assert column.shape == (BLOCK,) and not column.any()
    column[-1] = 7
    column.flush()
    content = (tmp_path / "column").read_bytes()
    assert len(content) == 2 * BLOCK and content[-2:] == b"\x07\x00"


def test_store_in_a_read_only_folder_opens(large, monkeypatch):
    (large.path / "verified.json").unlink()

    def refuse(path, value):
        raise UserError(f"cannot write {path}")

    monkeypatch.setattr(token_store, "write_json", refuse)
    assert len(TokenStore(large.path).split("train")) == 3_000
    assert not (large.path / "verified.json").exists()


def test_store_of_another_version_says_to_prepare_again(large):
    manifest = json.loads((large.path / "manifest.json").read_text())
    (large.path / "manifest.json").write_text(json.dumps({**manifest, "version": 1}))
    said = complaint(TokenStore, large.path)
    assert said == (
        f"{large.path} has the format of another version of this program; remove {large.path} and run `prepare` again"
    )


def test_store_names_damaged_manifest(tmp_path):
    path = store_of(tmp_path / "store", train=[([4], [5])]).path
    (path / "manifest.json").write_text("{")
    assert f"remove it and run `prepare` again: {path}/manifest.json is damaged" in complaint(TokenStore, path)


def test_store_write_interrupted_leaves_nothing(tmp_path):
    def interrupted():
        yield "s1", "s2"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        new_store(tmp_path / "store", {"train": interrupted()}, SYMBOLS)
    assert not list(tmp_path.iterdir())


def test_store_write_error_keeps_old_store(tmp_path):
    def damaged():
        yield "s1", "s2"
        raise UserError("corpus:2: not UTF-8")

    old = snapshot(store_of(tmp_path / "store", train=[([4], [5])]).path)
    assert "corpus:2" in complaint(new_store, tmp_path / "store", {"train": damaged()}, SYMBOLS)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert snapshot(tmp_path / "store") == old


def test_store_write_replaces_old_store(tmp_path):
    store_of(tmp_path / "store", train=[([4], [5])], test=[([4], [5])])
    assert list(store_of(tmp_path / "store", train=[([6], [7])]).manifest["splits"]) == ["train"]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert not (tmp_path / "store" / "test.source.ids").exists()


def test_store_write_keeps_blocking_file(tmp_path):
    (tmp_path / "store").write_text("mine")
    assert f"cannot write {tmp_path}/store" in complaint(store_of, tmp_path / "store", train=[([4], [5])])
    assert (tmp_path / "store").read_text() == "mine"


# prepare


@pytest.fixture
def corpus(tmp_path):
    """Folder with 200 pairs of parallel text."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_corpus(folder)
    return folder


def write_corpus(folder, split="train", count=200, seed=1):
    for language in ("en", "de"):
        text = "".join(f"{language} {line}\n" for line in sentences(count, seed))
        (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


def parallel(folder, **parameters):
    return load_problem(
        "parallel_text", data_dir=folder.parent / "data", raw_dir=folder, **{"vocab_size": 60, **parameters}
    )


def test_prepare_twice_writes_once(corpus):
    first = parallel(corpus).prepare().prepared_dir
    before, again = snapshot(first), parallel(corpus)
    with logged_lines() as said:
        assert again.prepare() is again
    assert (again.prepared_dir, snapshot(first), said) == (first, before, [])


def test_prepare_shares_store_with_reverse(corpus):
    forwards = parallel(corpus).prepare()
    before = snapshot(forwards.prepared_dir)
    backwards = load_problem("parallel_text_rev", data_dir=corpus.parent / "data", raw_dir=corpus, vocab_size=60)
    split = backwards.prepare().store.split("train")
    assert snapshot(backwards.prepared_dir) == before
    assert content(split.source) == content(forwards.store.split("train").target)


def test_prepared_directory_depends_on_parameters(corpus):
    other = corpus.parent / "other"
    other.mkdir()
    write_corpus(other)
    problems = parallel(corpus), parallel(other), parallel(corpus, vocab_size=61), parallel(corpus)
    assert len({problem.prepared_dir for problem in problems}) == 3


def test_prepare_notices_changed_file(corpus):
    old = parallel(corpus).prepare().store.fingerprint
    lines = (corpus / "train.de").read_text(encoding="utf-8").splitlines()
    lines[7] = "ein anderer Satz"
    (corpus / "train.de").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with logged_lines() as said:
        anew = parallel(corpus).prepare()
    assert said[0] == f"{corpus}/train.de has changed since it was prepared"
    assert sum("has changed" in line for line in said) == 1
    assert anew.store.fingerprint != old
    targets = [content(anew.store.split(split).target) for split in ("train", "validation")]
    assert "ein anderer Satz" in anew.tokenizer.decode(sum(targets, []))


def test_prepare_ignores_modification_time(corpus):
    before = snapshot(parallel(corpus).prepare().prepared_dir)
    (corpus / "train.de").touch()
    assert snapshot(parallel(corpus).prepare().prepared_dir) == before


def test_prepare_notices_added_file(corpus):
    assert "test" not in parallel(corpus).prepare().store.manifest["splits"]
    write_corpus(corpus, "test", 10)
    assert parallel(corpus).prepare().store.manifest["splits"]["test"]["pairs"] == 10


def test_prepared_corpus_survives_deleted_files(corpus):
    before = snapshot(parallel(corpus).prepare().prepared_dir)
    (corpus / "train.de").unlink()
    with logged_lines() as said:
        assert snapshot(parallel(corpus).prepare().prepared_dir) == before
    assert said == [f"{corpus}/train.de is missing; using the corpus prepared from it"]


def test_prepare_notices_removed_validation_files(corpus):
    write_corpus(corpus, "validation", 12, seed=2)
    assert len(parallel(corpus).prepare().store.split("validation")) == 12
    for language in ("en", "de"):
        (corpus / f"validation.{language}").unlink()
    with logged_lines() as said:
        again = parallel(corpus).prepare()
    assert said[0] == f"{corpus}/validation.en was removed after the corpus was prepared"
    assert len(again.store.split("validation")) == len(list(again.examples("validation"))) == 10
    assert len(again.store.split("train")) == 190


def test_forget_discards_all_cached_properties(corpus):
    class Counted(type(parallel(corpus))):
        @functools.cached_property
        def count(self):
            return len([*self.examples("train")])

    problem = Counted(raw_dir=corpus)
    before = problem.count
    with (corpus / "train.en").open("a") as english, (corpus / "train.de").open("a") as german:
        print("one more line", file=english)
        print("eine weitere Zeile", file=german)
    problem.forget()
    assert problem.count >= before + 1


@pytest.mark.parametrize("changed", ["itself", "another"])
def test_prepare_notices_replaced_file(corpus, changed):
    """Replace `train.en` with `train.en.gz`, and change the order of the lines in `train.en.gz` or in `train.de`."""
    old = parallel(corpus).prepare().store.fingerprint
    lines = (corpus / "train.en").read_bytes().splitlines(keepends=True)
    (corpus / "train.en").unlink()
    if changed == "itself":
        with gzip.open(corpus / "train.en.gz", "wb") as file:
            file.writelines([*lines[1:], lines[0]])
        said = f"{corpus}/train.en.gz was added after the corpus was prepared"
    else:
        (corpus / "train.en.gz").write_bytes(gzip.compress(b"".join(lines)))
        german = (corpus / "train.de").read_bytes().splitlines(keepends=True)
        (corpus / "train.de").write_bytes(b"".join([*german[1:], german[0]]))
        said = f"{corpus}/train.de has changed since it was prepared"
    with logged_lines() as told:
        assert parallel(corpus).prepare().store.fingerprint != old
    assert told[0] == said
