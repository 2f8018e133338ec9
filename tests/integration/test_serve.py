"""Tests of the command `serve`: startup, shutdown, and translation over HTTP with a run and its exports."""

import concurrent.futures
import json
import re
import signal
import socket
import time

import keras
import numpy as np
import pytest
from helpers.commands import spawn

pytest.importorskip("fastapi")

from helpers.served import ask, serving  # noqa: E402

import keras_transformer as kt  # noqa: E402
from keras_transformer.server.application import application  # noqa: E402
from keras_transformer.server.engines import load_engine  # noqa: E402
from keras_transformer.utils.errors import UserError  # noqa: E402

pytestmark = pytest.mark.usefixtures("eager")

TEXTS = ["s1 s2 s3 s4 s5", "", "s5 s4", "s2", "s1 unknown s3", "s3 s3 s3 s3 s3 s3 s3 s3"]


def expected(home, nbest, **search):
    found = kt.Translator.load(home.run).translate(TEXTS, nbest=nbest, **search)
    return [[(one.text, one.score) for one in several] for several in found]


def same(found, wanted):
    assert [[text for text, _ in several] for several in found] == [[text for text, _ in several] for several in wanted]
    for several, others in zip(found, wanted):
        np.testing.assert_allclose([score for _, score in several], [score for _, score in others], atol=1e-4)


def refuse(*arguments):
    """Replace `application`, so that `serve` stops after it has loaded the model."""
    raise UserError(f"the language is {arguments[-1]}")


@pytest.fixture
def started(home):
    """Return a function that starts `serve` in a new process and returns (process, URL)."""
    processes = []

    def start(*flags):
        process = spawn("serve", f"--run={home.run}", *flags, cwd=home.path)
        processes.append(process)
        line = process.stdout.readline()
        assert line, process.stderr.read()
        return process, re.search(r"http://\S*", line)[0]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.backend
def test_serve_answers_and_stops_at_signals(home, started):
    process, url = started("--port=0", "--engine=keras", "--beam_size=3", "--batch_tokens=16", "--timeout=20")
    assert url.startswith("http://127.0.0.1:")  # by default, only local clients can connect
    same(ask(url, body={"texts": TEXTS, "nbest": 3}).outputs, expected(home, 3, beam_size=3))
    port = int(url.rpartition(":")[2])

    # SIGINT stops the server during a batch. Python would abort if a thread returned from JAX during shutdown.
    body = json.dumps({"texts": [TEXTS[-1]] * 60}).encode()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"POST /translate HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n")
        client.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        deadline = time.monotonic() + 30
        while "waiting_texts 0.0" in ask(url, "/metrics").content:  # texts wait only while a batch is running
            assert time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (-signal.SIGINT, "")

    # A new server can reuse the port immediately. After SIGTERM, a server still answers earlier requests.
    process, again = started(f"--port={port}", "--engine=keras")
    assert again == url and ask(url, "/healthz").status == 200
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, url, body={"texts": TEXTS * 10}) for _ in range(4)]
        while "waiting_texts 0.0" in ask(url, "/metrics").content and not all(one.done() for one in asked):
            pass
        process.send_signal(signal.SIGTERM)
        assert [len(one.result().outputs) for one in asked] == [60] * 4
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (-signal.SIGTERM, "")


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel needs TensorFlow")
def test_serve_loads_saved_model(home, saved):
    engine = load_engine(saved)
    assert (engine.max_nbest, engine.trees, engine.shows_attention) == (2, False, False)
    with serving(application(engine)) as url:
        same(ask(url, body={"texts": TEXTS, "nbest": 2}).outputs, expected(home, 2))
        assert ask(url, "/model").content["model"] == "reverse-toy"


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel needs TensorFlow")
def test_serve_accepts_export_without_other_flags(saved, call, monkeypatch):
    monkeypatch.setattr("keras_transformer.server.application.application", refuse)
    call("serve", f"--run={saved}", "--port=0").refused("the language is None")


@pytest.mark.parametrize(
    "format, name, value",
    [
        ("saved_model", "beam_size", 3),
        ("saved_model", "alpha", 0.0),
        ("saved_model", "extra_length", 0),
        ("saved_model", "no_repeat_ngram", 3),
        ("ctranslate2", "repetition_penalty", 2.0),
        ("ctranslate2", "jit_compile", True),
    ],
)
def test_load_engine_rejects_fixed_settings(tmp_path, format, name, value):
    (tmp_path / "export.json").write_text(json.dumps({"format": format, "files": []}))
    with pytest.raises(UserError, match=f"--{name} needs a run"):
        load_engine(tmp_path, **{name: value})


def test_serve_applies_repetition_options(home):
    options = {"beam_size": 2, "no_repeat_ngram": 1, "repetition_penalty": 2.0}
    with serving(application(load_engine(home.run, **options))) as url:
        found = ask(url, body={"texts": ["s1 s1 s2 s1"]}).outputs
    ((hypothesis,),) = kt.Translator.load(home.run).translate(["s1 s1 s2 s1"], **options)
    same(found, [[(hypothesis.text, hypothesis.score)]])
    assert len(set(hypothesis.tokens)) == len(hypothesis.tokens)


@pytest.mark.parametrize("engine", ["keras", "ctranslate2"])
def test_serve_splits_sentences(home, engine):
    pytest.importorskip("sentencex")
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    text = "s1 s2. S3 s4."
    ((joined,),) = kt.Translator.load(home.run, engine=engine).translate([text], split_sentences="en")
    with serving(application(load_engine(home.run, engine=engine), language="en")) as url:
        same(ask(url, body={"texts": [text]}).outputs, [[(joined.text, joined.score)]])


def test_serve_passes_language_to_application(home, call, monkeypatch):
    pytest.importorskip("sentencex")
    monkeypatch.setattr("keras_transformer.server.application.application", refuse)
    call("serve", f"--run={home.run}", "--port=0", "--split_sentences=en").refused("the language is en")
    call("serve", f"--run={home.run}", "--port=0").refused("the language is None")


def test_serve_loads_ctranslate2_model(home, call, tmp_path):
    pytest.importorskip("ctranslate2")
    call(
        "export", f"--run={home.run}", "--format=ctranslate2", f"--output_dir={tmp_path}/out"
    ).succeeded_with_warnings()
    engine = load_engine(tmp_path / "out", beam_size=1, extra_length=3)
    greedy = expected(home, 1, beam_size=1)
    with serving(application(engine)) as url:
        found = ask(url, body={"texts": TEXTS}).outputs
        alone = [ask(url, body={"texts": [text]}).outputs[0] for text in TEXTS]
    assert [texts for ((texts, _),) in found] == [texts for ((texts, _),) in alone]
    # At the length limit, outputs of this package's search are one token shorter than those of CTranslate2.
    assert [several[0][0].split()[:3] for several in found] == [several[0][0].split()[:3] for several in greedy]
    with pytest.raises(UserError, match="--checkpoint needs a run"):
        load_engine(tmp_path / "out", checkpoint="last")
    (tmp_path / "out" / "model.bin").write_bytes(b"wrong")
    with pytest.raises(UserError, match="cannot load"):
        load_engine(tmp_path / "out")


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--run=nowhere"], "nowhere is not a run directory"),
        (["--run=HOME", "--checkpoint=7"], "available steps: 3, 6"),
        (["--run=HOME", "--host=no.such.host.invalid"], "--host=no.such.host.invalid"),
        (["--run=HOME", "--port=65536"], "--port must be from 0 to 65535, got 65536"),
        (["--run=HOME", "--port=TAKEN"], "Address already in use. Choose another host or port."),
        (["--run=HOME", "--max_texts=9", "--max_waiting=8"], "--max_texts must be at most --max_waiting=8, got 9"),
        (["--run=HOME", "--timeout=0"], "must be from 1 to"),
        (["--run=HOME", "--split_sentences"], "--split_sentences needs a "),
    ],
)
def test_serve_rejects_wrong_flags(home, call, flags, said):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = [flag.replace("HOME", str(home.run)).replace("TAKEN", str(port)) for flag in flags]
        call("serve", *(["--port=0"] if not any("--port" in flag for flag in flags) else []), *flags).refused(said)


@pytest.mark.parametrize("engine", ["keras", "ctranslate2"])
def test_serve_shows_attention_up_to_a_length(home, engine):
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    with serving(application(load_engine(home.run, engine=engine))) as url:
        data = ask(url, "/attention", {"source": "s1 s2 s3", "target": "s3 s2"}).content
        assert data["maps"][2]["forms"]["words"]["queries"] == ["s3", "s2", "</s>"]
        ask(url, "/attention", {"source": "", "target": "s3 s2"}).refused(422, "a blank text has no attention to show")
        ask(url, "/attention", {"source": "s1 " * 101, "target": "c"}).refused(422, "at most 100")


def test_serve_translates_with_ctranslate2(home):
    pytest.importorskip("ctranslate2")
    engine = load_engine(home.run, engine="ctranslate2", beam_size=3)
    translator = kt.Translator.load(home.run, engine="ctranslate2")
    wanted = [[(one.text, one.score) for one in several] for several in translator.translate(TEXTS, 3, nbest=3)]
    with serving(application(engine)) as url:
        same(ask(url, body={"texts": TEXTS, "nbest": 3}).outputs, wanted)
    assert load_engine(home.run).name == "ctranslate2"
    with pytest.raises(UserError, match="does not support precision=bfloat16. Use engine keras"):
        load_engine(home.run, engine="ctranslate2", precision="bfloat16")
