"""Tests of WMT14, TED and IWSLT15 with TensorFlow Datasets (TFDS), with plain files, and without a network."""

import gzip
import http.server
import json
import re
import shutil
import sys
import threading
import urllib.request

import pytest
from helpers.errors import complaint
from helpers.logs import logged_lines
from helpers.quick import eager_functions

from keras_transformer import evaluate, prepare, train
from keras_transformer.tasks.problem import load_problem
from keras_transformer.utils.files import sha256

COUNTS = {"train": 600, "validation": 10, "test": 8}
SMALL = ("--hparams=toy", "--num_layers=1", "--d_model=16", "--d_ff=32", "--num_heads=2", "--batch_tokens=1024",
         "--train_steps=2", "--eval_steps=2", "--warmup_steps=2", "--beam_size=2", "--extra_length=3")  # fmt: skip


def english_and_german(split):
    pairs = load_problem("toy_ende", train_pairs=COUNTS["train"]).examples(split)
    return [pair for pair, _ in zip(pairs, range(COUNTS[split]))]


def english_and_french(split):
    start = list(COUNTS).index(split) * 10_000
    return [
        (f"He said: “{i} times {i % 7}”; really?", f"Il a dit : « {i} fois {i % 7} » ; c'est vrai ?")
        for i in range(start, start + COUNTS[split])
    ]


PAIRS = {"de": english_and_german, "fr": english_and_french}
STORED = "He said: &quot;AT&amp;T &lt; R&D &#38; &amp;lt; &apos;a&apos; &copy 1 &gt; 0&quot;"
READ = """He said: "AT&T < R&D & &lt; 'a' &copy 1 > 0\""""


def with_entities(pairs):
    """Return the pairs in the form in which TFDS stores them. The last pair has SGML entities."""
    return [*pairs[:-1], (STORED, STORED)]


def without_entities(pairs, split):
    """Return the pairs that a problem should read. The problem must not decode entities in the training split."""
    return [*pairs[:-1], (STORED, STORED) if split == "train" else (READ, READ)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Return a TFDS data folder with a small `wmt14_translate`."""
    tfds = pytest.importorskip("tensorflow_datasets", reason="needed to store a corpus for TFDS")
    home = tmp_path_factory.mktemp("tfds")
    for language, pairs in PAIRS.items():
        tfds.dataset_builders.store_as_tfds_dataset(
            name="wmt14_translate", config=f"{language}-en", version="1.0.0", data_dir=home,
            features=tfds.features.Translation(languages=(language, "en")),
            split_datasets={
                split: [(i, {"en": en, language: other}) for i, (en, other) in enumerate(with_entities(pairs(split)))]
                for split in COUNTS
            },
        )  # fmt: skip
    return home


@pytest.fixture
def data(stored, tmp_path, monkeypatch):
    """Return a data directory that contains the TFDS corpora, as after a download."""
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    shutil.copytree(stored, tmp_path / "data" / "tensorflow_datasets")
    return tmp_path / "data"


def german(data):
    return data / "tensorflow_datasets" / "wmt14_translate" / "de-en" / "1.0.0"


# TensorFlow Datasets


@pytest.mark.parametrize("split", COUNTS)
@pytest.mark.parametrize("language", PAIRS)
def test_tfds_pairs_have_no_sgml_entities(data, split, language):
    problem = load_problem(f"wmt14_en{language}", data_dir=data)
    pairs = list(problem.examples(split))
    assert sorted(pairs) == sorted(without_entities(PAIRS[language](split), split))
    assert pairs == list(problem.examples(split))  # the order is the same each time
    backwards = load_problem(f"wmt14_{language}en", data_dir=data)
    assert list(backwards.examples(split)) == [(target, source) for source, target in pairs]


def test_commands_run_on_tfds_corpus(data, tmp_path, capsys):
    flags = ["--problem=wmt14_ende", f"--data_dir={data}", "--set", "problem.vocab_size=300"]
    prepare.main(flags)
    assert re.search(r"train: 600 pairs, .* tokens\n", capsys.readouterr().out)
    with eager_functions():
        train.main([*flags, *SMALL, f"--output_dir={tmp_path / 'run'}"])
        capsys.readouterr()
        evaluate.main([f"--run={tmp_path / 'run'}", "--split=test", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert "sacreBLEU" in json.dumps(found) and found.get("split", "test") == "test"


def test_french_uses_word_pieces_and_keeps_spaces(data):
    problem = load_problem("wmt14_enfr", data_dir=data, vocab_size=200).prepare()
    assert (problem.prepared_dir / "word_pieces.txt").is_file() and problem.tokenizer.vocab_size == 200
    targets = problem.store.split("test").target
    found = problem.tokenizer.decode([targets[row] for row in range(len(targets))])
    assert sorted(found) == sorted(target for _, target in without_entities(english_and_french("test"), "test"))
    with logged_lines() as said:
        assert load_problem("wmt14_fren", data_dir=data, vocab_size=200).prepare().store and not said


def test_prepare_notices_changed_tfds_files(data):
    problem = load_problem("wmt14_ende", data_dir=data, vocab_size=300).prepare()
    files = {path.resolve(): sha256(path) for path in german(data).iterdir()}
    known = problem.store.manifest["corpus"]
    assert {path: entry["sha256"] for path, entry in known.items()} == {str(path): sum for path, sum in files.items()}
    assert len([path for path in files if "tfrecord" in path.name]) == 3
    (german(data) / "dataset_info.json").write_text((german(data) / "dataset_info.json").read_text() + "\n")
    with logged_lines() as said:
        load_problem("wmt14_ende", data_dir=data, vocab_size=300).prepare()
    assert said[0].endswith("dataset_info.json has changed since it was prepared")


def test_prepared_corpus_needs_neither_tfds_nor_tensorflow(data, monkeypatch):
    load_problem("wmt14_enfr", data_dir=data, vocab_size=200).prepare()
    for name in [name for name in sys.modules if name.startswith("tensorflow")]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("tensorflow_datasets", "tensorflow_text"):
        monkeypatch.setitem(sys.modules, name, None)
    with logged_lines() as lines:
        problem = load_problem("wmt14_enfr", data_dir=data, vocab_size=200).prepare()
    assert not lines
    assert problem.tokenizer.decode(problem.tokenizer.encode(["« a »"])) == ["« a »"]


def test_tfds_data_dir_is_respected(stored, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(stored))
    assert len(list(load_problem("wmt14_ende", data_dir=tmp_path).examples("test"))) == COUNTS["test"]


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


def cut_at_a_record(path):
    length = int.from_bytes(path.read_bytes()[:8], "little")
    path.write_bytes(path.read_bytes()[: 16 + length])


def change_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, cut_at_a_record, change_a_byte, lambda path: path.unlink()])
def test_damaged_record_files_are_named(data, damage):
    damage(next(german(data).glob("*train.tfrecord*")))
    said = complaint(load_problem("wmt14_ende", data_dir=data).examples, "train")
    assert re.match(rf"{german(data)} is damaged \(.+\); remove the folder and rerun the command", said)


def test_damaged_tfds_description_is_named(data):
    problem = load_problem("wmt14_ende", data_dir=data)
    shutil.copytree(german(data).parents[1] / "fr-en" / "1.0.0", german(data), dirs_exist_ok=True)
    assert f"{german(data)} is damaged" in complaint(problem.examples, "test")
    for name, text in (("dataset_info.json", "{}"), ("dataset_info.json", '{"wrong": 1}'), ("features.json", "{")):
        path, before = german(data) / name, (german(data) / name).read_text()
        path.write_text(text)
        assert f"{german(data)} is damaged" in complaint(problem.examples, "test")
        path.write_text(before)
    (german(data) / "dataset_info.json").write_text("{")
    assert f"remove {german(data)} to build it again" in complaint(problem.examples, "test")


# Failed downloads


@pytest.mark.parametrize("missing", ["tensorflow_datasets", "tensorflow"])
def test_missing_tfds_is_named(tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    said = complaint(load_problem("wmt14_ende", data_dir=tmp_path).corpus_files)
    assert f"{missing} is not installed; run pip install tensorflow-datasets" in said and "--raw_dir" in said


@pytest.fixture
def proxy(monkeypatch):
    """Send all downloads to a local server, and return an empty list to which a test may add an answer (bytes).

    The server answers every request with the first element of the list, or with status 404 if the list is empty.
    """
    pytest.importorskip("tensorflow_datasets")
    answers = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200)
            self.end_headers()

        def do_GET(self):
            self.send_response(200 if answers else 404)
            self.end_headers()
            if answers:
                self.wfile.write(answers[0])

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY", "TFDS_DATA_DIR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(urllib.request, "_opener", None)  # urllib caches the proxy settings when it is first used
        yield answers
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("name", "size", "files"),
    [("wmt14_ende", "1.58 GiB", "train.en, train.de"), ("wmt14_enfr", "6.2 GiB", "train.en, train.fr"),
     ("ted_pten", "125 MiB", "pt.train, en.train")],
)  # fmt: skip
def test_download_without_network_names_remedy(tmp_path, proxy, monkeypatch, name, size, files):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    said = complaint(load_problem(name, data_dir=tmp_path).corpus_files)
    assert f"is not in {tmp_path}/tensorflow_datasets and cannot be downloaded" in said
    assert size in said and files in said and "--raw_dir" in said


def test_download_with_wrong_checksum_is_rejected(tmp_path, proxy):
    proxy.append(b"the beginning of an archive")
    problem = load_problem("wmt14_ende", data_dir=tmp_path)
    for _ in range(2):
        said = complaint(problem.corpus_files)
        assert "/training-parallel-europarl-v7.tgz has the wrong checksum" in said
        assert f"remove {tmp_path}" in said and "rerun the command to download it again" in said
    assert not list(tmp_path.rglob("dataset_info.json"))


def test_download_reports_http_404(tmp_path, proxy):
    assert "HTTP code: 404" in complaint(load_problem("ted_pten", data_dir=tmp_path).corpus_files)


# Plain files


def write(folder, names, compress=False):
    for name in names:
        content = f"{name}\nline 2\n".encode()
        if compress:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


FILES = {
    "wmt14_ende": [(f"{name}.en", f"{name}.de") for name in ("train", "newstest2013", "newstest2014")],
    "wmt14_enfr": [("train.en", "train.fr"), ("validation.en", "validation.fr"), ("test.en", "test.fr")],
    "ted_pten": [("pt.train", "en.train"), ("pt.dev", "en.dev"), ("pt.test", "en.test")],
    "iwslt15_envi": [("train.en", "train.vi"), ("tst2012.en", "tst2012.vi"), ("tst2013.en", "tst2013.vi")],
}  # fmt: skip


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_plain_files_are_read_by_usual_names(tmp_path, name, compress):
    write(tmp_path, sum(FILES[name], ()), compress)
    problem = load_problem(name, raw_dir=tmp_path)
    assert [path.name.removesuffix(".gz") for path in problem.corpus_files()] == [*sum(FILES[name], ())]
    for split, files in zip(COUNTS, FILES[name]):
        assert list(problem.examples(split)) == [files, ("line 2", "line 2")]


@pytest.mark.parametrize("name", FILES)
def test_missing_plain_files_are_named(tmp_path, name):
    problem = load_problem(name, raw_dir=tmp_path)
    source, target = FILES[name][0]
    assert f"{tmp_path} must contain the files of the train split: " in complaint(problem.corpus_files)
    assert f"{source} and {target}" in complaint(problem.corpus_files)
    write(tmp_path, [source])
    assert f"{tmp_path}/{target} does not exist, but {source} does" in complaint(problem.examples, "train")


def test_empty_pairs_stay_in_test_sets(tmp_path):
    for name in sum(FILES["wmt14_ende"], ()):
        (tmp_path / name).write_text("one\n \nthree\n" if name.endswith("de") else "one\ntwo\nthree\n")
    problem = load_problem("wmt14_ende", raw_dir=tmp_path, data_dir=tmp_path / "data", vocab_size=16).prepare()
    counts = problem.store.manifest["splits"]
    assert [counts[split]["pairs"] for split in COUNTS] == [2, 3, 3]
    assert counts["train"]["dropped_with_an_empty_side"] == 1


def test_iwslt15_without_raw_dir_names_source():
    said = complaint(load_problem("iwslt15_vien").corpus_files)
    assert "https://nlp.stanford.edu" in said and "--raw_dir=FOLDER" in said
