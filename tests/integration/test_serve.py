"""The command `serve`: a run and its exports over HTTP, its page in a browser, and how it begins and ends."""

import concurrent.futures
import json
import re
import signal
import socket
import time

import keras
import numpy as np
import pytest
from helpers.browser import complaints, open_browser
from helpers.commands import spawn
from helpers.paths import ROOT

pytest.importorskip("fastapi")

from helpers.served import Backwards, ask, serving  # noqa: E402

import keras_transformer as kt  # noqa: E402
from keras_transformer.errors import UserError  # noqa: E402
from keras_transformer.server.application import application  # noqa: E402
from keras_transformer.server.batcher import Batcher, Full  # noqa: E402
from keras_transformer.server.engines import Output, load_engine  # noqa: E402
from keras_transformer.server.limits import Limits  # noqa: E402

TEXTS = ["s1 s2 s3 s4 s5", "", "s5 s4", "s2", "s1 unknown s3", "s3 s3 s3 s3 s3 s3 s3 s3"]


def expected(home, nbest, **search):
    found = kt.Translator.load(home.run).translate(TEXTS, nbest=nbest, **search)
    return [[(one.text, one.score) for one in several] for several in found]


def same(found, wanted):
    assert [[text for text, _ in several] for several in found] == [[text for text, _ in several] for several in wanted]
    for several, others in zip(found, wanted):
        np.testing.assert_allclose([score for _, score in several], [score for _, score in others], atol=1e-4)


@pytest.fixture
def started(home):
    """Starts the command in a process of its own; returns it and its URL. It is killed at the end."""
    processes = []

    def start(*flags):
        process = spawn("serve", f"--run={home.run}", *flags, cwd=home.path)
        processes.append(process)
        line = process.stdout.readline()
        assert line, process.stderr.read()
        return process, re.search(r"http://[^,]*", line)[0]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_it_answers_what_the_translator_says_and_ends_when_asked_to(home, started):
    process, url = started("--port=0", "--beam_size=3", "--timeout=20")
    same(ask(url, body={"texts": TEXTS, "nbest": 3}).outputs, expected(home, 3, beam_size=3))
    assert url.startswith("http://127.0.0.1:")  # nobody else is served unless asked for
    port = int(url.rpartition(":")[2])
    process.kill()
    process.wait()
    process, again = started(f"--port={port}")  # after a kill, at the same place
    assert again == url and ask(url, "/healthz").status == 200
    # Requests that come before the signal are answered.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, url, body={"texts": TEXTS * 10}) for _ in range(4)]
        while "waiting_texts 0.0" in ask(url, "/metrics").content and not all(one.done() for one in asked):
            pass  # one batch is at work when others wait
        process.send_signal(signal.SIGTERM)
        assert [len(one.result().outputs) for one in asked] == [60] * 4
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (-signal.SIGTERM, "")


def test_ctrl_c_ends_it_at_once_with_a_batch_at_work_that_nobody_waits_for(started):
    """Python aborted, where a thread came back from JAX while it ended."""
    process, url = started("--port=0", "--batch_tokens=16")  # a batch a text: many of them
    body = json.dumps({"texts": [TEXTS[-1]] * 60}).encode()
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
        client.sendall(b"POST /translate HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n")
        client.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        deadline = time.monotonic() + 30
        while "waiting_texts 0.0" in ask(url, "/metrics").content:  # one batch is at work when others wait
            assert time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (-signal.SIGINT, "")


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel needs TensorFlow")
def test_a_saved_model_is_served(home, call, tmp_path):
    call(
        "export", f"--run={home.run}", "--format=saved_model", "--nbest=2", f"--output_dir={tmp_path}/out"
    ).succeeded_with_warnings()
    engine = load_engine(tmp_path / "out")
    assert (engine.most_nbest, engine.trees, engine.shows_attention) == (2, False, False)
    with serving(application(engine)) as url:
        same(ask(url, body={"texts": TEXTS, "nbest": 2}).outputs, expected(home, 2))
        assert ask(url, "/model").content["model"] == "reverse-toy"
    with pytest.raises(UserError, match="--beam_size is for a run"):
        load_engine(tmp_path / "out", beam_size=3)


def test_an_export_for_ctranslate2_is_served(home, call, tmp_path):
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
    # Its search ends otherwise at the limit: there ours has one token less.
    assert [several[0][0].split()[:3] for several in found] == [several[0][0].split()[:3] for several in greedy]
    with pytest.raises(UserError, match="--checkpoint is for a run"):
        load_engine(tmp_path / "out", checkpoint="last")
    (tmp_path / "out" / "model.bin").write_bytes(b"wrong")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_engine(tmp_path / "out")


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--run=nowhere"], "there is no run directory nowhere"),
        (["--run=HOME", "--checkpoint=7"], "there are steps 3, 6"),
        (["--run=HOME", "--host=no.such.host.invalid"], "--host=no.such.host.invalid"),
        (["--run=HOME", "--port=65536"], "ports go up to 65535"),
        (["--run=HOME", "--port=TAKEN"], "Address already in use; choose another"),
        (["--run=HOME", "--max_texts=9", "--max_waiting=8"], "--max_texts=9 is more than may wait"),
        (["--run=HOME", "--timeout=0"], "takes a whole number from 1 on"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_served(home, call, flags, said):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = [flag.replace("HOME", str(home.run)).replace("TAKEN", str(port)) for flag in flags]
        call("serve", *(["--port=0"] if not any("--port" in flag for flag in flags) else []), *flags).refused(said)


def test_a_run_s_attention_is_shown_up_to_a_length(home):
    with serving(application(load_engine(home.run))) as url:
        data = ask(url, "/attention", {"source": "s1 s2 s3", "target": "s3 s2"}).content
        assert data["maps"][2]["forms"]["words"]["queries"] == ["s3", "s2", "</s>"]
        ask(url, "/attention", {"source": "", "target": "s3 s2"}).refused(422, "a blank text has no attention to show")
        ask(url, "/attention", {"source": "s1 " * 101, "target": "c"}).refused(422, "at most 100")


def test_the_benchmark_compares_every_answer(home, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import serve

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(home.path)  # where its prepared corpus is
    monkeypatch.setattr(serve, "WARM_UP", 1)
    flags = f"--run={home.run}", "--sentences=20", "--seconds=1", f"--json={tmp_path}/rows.jsonl"
    serve.main([*flags, "--clients=1,4"])
    one, four = map(json.loads, (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines())
    assert (one["clients"], four["clients"]) == (1, 4) and one["model"] == "reverse-toy"
    assert one["answers"] > 0 and four["answers"] > 0
    assert one["wrong"] == one["errors"] == four["wrong"] == four["errors"] == 0
    monkeypatch.setattr(serve, "questions_of", lambda *arguments: [("s1 s2", "something else")])
    serve.main([*flags, "--clients=1"])
    last = json.loads((tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert last["wrong"] == last["answers"] > 0


class TestPage:
    """The page at `/`, in a real browser."""

    @pytest.fixture(scope="class")
    @classmethod
    def driver(cls, tmp_path_factory):
        driver = open_browser(tmp_path_factory.mktemp("browser"))
        yield driver
        driver.quit()

    def translate(self, driver, url, text):
        driver.get(url)
        return self.translate_again(driver, text)

    def translate_again(self, driver, text):
        """Replaces the text and returns the translations shown once the page is done; sets text as pasting does."""
        from selenium.webdriver.support.ui import WebDriverWait

        driver.execute_script("document.getElementById('source').value = arguments[0]", text)
        driver.find_element("id", "translate").click()
        WebDriverWait(driver, 20).until(lambda _: driver.find_element("id", "translate").is_enabled())
        return [row.text for row in driver.find_elements("css selector", "#results .text")]

    def said(self, driver):
        """Returns all that the page says of errors."""
        return [one.text for one in driver.find_elements("css selector", ".wrong") if one.text]

    def test_a_word_shows_what_it_attended_to(self, driver, home):
        from selenium.webdriver.common.keys import Keys
        from selenium.webdriver.support.ui import WebDriverWait

        engine = load_engine(home.run)
        # Six updates teach no model how many words to say.
        engine.translate = lambda texts, nbest: [[Output(" ".join(text.split()[::-1]), -1.0)] for text in texts]
        with serving(application(engine)) as url:
            wanted = ["s3 s2 s1", "s5 s4"]
            driver.get(url)
            driver.find_element("id", "source").send_keys("s1 s2 s3\n\n s4 s5", Keys.CONTROL, Keys.ENTER)
            WebDriverWait(driver, 20).until(lambda _: driver.find_element("id", "state").text.endswith(" s"))
            assert [row.text for row in driver.find_elements("css selector", "#results .text")] == wanted
            assert driver.title == "reverse-toy"
            words = driver.find_elements("css selector", "#results .word")
            assert [word.text for word in words] == " ".join(wanted).split()
            words[1].send_keys(Keys.ENTER)  # by keyboard
            pinned = "#attention .queries .word.pinned"
            WebDriverWait(driver, 20).until(lambda _: driver.find_elements("css selector", pinned))
            assert driver.find_element("css selector", pinned).text == words[1].text
            assert words[1].get_attribute("aria-pressed") == "true"
            keys = driver.find_elements("css selector", "#attention .keys .word")
            assert [word.text for word in keys] == ["s1", "s2", "s3", "</s>"]
            assert driver.find_elements("css selector", "#attention svg path")
        assert complaints(driver) == []

    def test_page_shows_scores_of_several_translations(self, driver):
        from selenium.webdriver.support.ui import Select

        with serving(application(Backwards())) as url:
            assert self.translate(driver, url, "one") == ["eno"]
            Select(driver.find_element("id", "nbest")).select_by_value("3")
            self.translate_again(driver, "one")
            shown = driver.find_elements("css selector", "#results ol > li")
            assert [row.text.split() for row in shown] == [["0.000", "eno"], ["-1.000", "eno1"], ["-2.000", "eno2"]]
        assert complaints(driver) == []

    def test_page_translates_more_lines_than_a_request_takes(self, driver):
        lines = [f"line {i}" if i % 5 else "" for i in range(100)]
        with serving(application(Backwards(), Limits(texts=8))) as url:
            assert self.translate(driver, url, "\n".join(lines)) == [line[::-1] for line in lines if line]
            entries = driver.find_elements("css selector", "#results > li")
            assert [bool(entry.text) for entry in entries] == [bool(line) for line in lines]
        assert complaints(driver) == []

    def test_page_shows_a_refused_line_between_the_others(self, driver):
        too_long, refused = "x" * 1041, "impossible"
        with serving(application(Backwards(), Limits(characters=1040))) as url:
            assert self.translate(driver, url, f"one\n{too_long}\ntwo\n{refused}") == ["eno", "owt"]
            assert self.said(driver) == [
                "2 of 4 lines could not be processed.",
                "This line is too long: at most 1,040 characters are possible. Put each sentence on a line of its own.",
                "This line could not be processed; it may be too long. Put each sentence on a line of its own.",
            ]
            entries = driver.find_elements("css selector", "#results > li")
            assert [bool(entry.find_elements("css selector", ".text")) for entry in entries] == [True, False] * 2
        assert all("422" in complaint for complaint in complaints(driver))

    def test_page_clears_the_translation_on_an_error(self, driver):
        with serving(application(Backwards(), Limits(seconds=20.0))) as url:
            assert self.translate(driver, url, "one") == ["eno"]
            assert self.translate_again(driver, "  \n") == []
            assert self.said(driver) == ["Enter a text first."]
            assert self.translate_again(driver, "two") == ["owt"] and self.said(driver) == []
            assert self.translate_again(driver, "fault") == []
            assert self.said(driver) == ["Something went wrong on the server. Its log has the details."]
            self.translate_again(driver, "three")
        assert self.translate_again(driver, "four") == []
        assert self.said(driver) == ["The server cannot be reached. Check that it is running and try again."]
        complaints(driver)

    def test_page_says_when_to_come_again_to_a_busy_server(self, driver, monkeypatch):
        def full(self, items, tokens, seconds):
            raise Full(7)

        monkeypatch.setattr(Batcher, "results", full)
        with serving(application(Backwards())) as url:
            assert self.translate(driver, url, "one") == []
            assert self.said(driver) == ["The server is busy. Try again in 7 seconds."]
        complaints(driver)

    def test_page_offers_words_without_spaces_between_them(self, driver):
        engine, text = Backwards(shows_attention=True), "我喜欢Python编程。 ein 👍🏽."
        engine.translate = lambda texts, nbest: [[Output(text, 0.0)] for text in texts]
        with serving(application(engine)) as url:
            assert self.translate(driver, url, text) == [text]
            words = [word.text for word in driver.find_elements("css selector", "#results .word")]
        assert words[0] == "我" and {"Python", "。"} < set(words)  # where a word ends is the browser's matter
        assert words[-2:] == ["ein", "👍🏽."]
        assert complaints(driver) == []

    def test_page_shows_right_to_left_text_from_the_right(self, driver):
        with serving(application(Backwards())) as url:
            (shown,) = self.translate(driver, url, "القط ينام")
            assert shown == "القط ينام"[::-1]
            for place in ("#source", "#results .text"):
                element = driver.find_element("css selector", place)
                assert driver.execute_script("return getComputedStyle(arguments[0]).direction", element) == "rtl"
        assert complaints(driver) == []

    def test_a_parser_s_tree_is_drawn(self, driver):
        with serving(application(Backwards(trees=True))) as url:
            tree = "(S (NP (DT The) (NN dog)))"
            assert self.translate(driver, url, tree[::-1]) == [tree]
            drawn = driver.find_element("css selector", "#results .tree svg")
            assert [text.text for text in drawn.find_elements("css selector", "text")] == "S NP DT NN The dog".split()
        assert complaints(driver) == []
