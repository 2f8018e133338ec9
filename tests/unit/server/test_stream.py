"""Tests of streamed translations, with an engine that reverses texts."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from helpers.served import LIMITS, ask, block, metrics, raw_request, serving, streaming, waiting  # noqa: E402
from helpers.waiting import wait_for  # noqa: E402

from keras_transformer.server.application import application  # noqa: E402


def streamed(url, body):
    """Return the lines of a streamed answer."""
    with streaming(url, body) as (status, lines):
        assert status == 200
        return list(lines)


def answers(url, status):
    """Return the number of translation requests that ended with the given status."""
    return metrics(url).get(("requests_total", "/translate", str(status)), 0)


def close_after_first_batch(engine):
    """Make the engine clear `gate` after its first batch, so that the next batch waits until `gate` is set."""
    translate = engine.translate

    def closing(texts, nbest):
        outputs = translate(texts, nbest)
        if len(engine.batches) == 1:
            engine.gate.clear()
        return outputs

    engine.translate = closing


def test_stream_ends_with_complete_answer(splitting_url, engine):
    body = {"texts": ["Dr. A ran. It fell!\n\nOne.", " \n", "Two. "], "nbest": 2}
    *sentences, last = streamed(splitting_url, body)
    assert last == ask(splitting_url, body=body).content
    assert [one["position"] for one in sentences] == [[0, 0, 0], [0, 0, 1], [0, 2, 0], [2, 0, 0]]
    assert [[found["text"] for found in one["translations"]] for one in sentences] == [
        [".nar A .rD", ".nar A .rD1"], ["!llef tI", "!llef tI1"], [".enO", ".enO1"], [".owT", ".owT1"]
    ]  # fmt: skip
    assert sentences[0]["translations"][1]["score"] == -1
    assert [sorted(batch) for batch in engine.batches[:2]] == [["Dr. A ran."], ["It fell!", "One.", "Two."]]
    assert streamed(splitting_url, {"texts": [" "]}) == [ask(splitting_url, body={"texts": [" "]}).content]


def test_stream_sends_each_sentence_at_once(url, engine):
    close_after_first_batch(engine)
    with streaming(url, {"texts": ["one\ntwo", "three"]}) as (status, lines):
        assert (status, next(lines)["translations"][0]["text"]) == (200, "eno")
        wait_for(lambda: len(engine.batches) == 2)
        engine.gate.set()
        assert [one.get("position") for one in lines] == [[0, 1, 0], [1, 0, 0], None]
    wait_for(lambda: answers(url, 200) == 1)
    assert metrics(url)["texts_total",] == 3


@pytest.mark.parametrize(
    ("bad", "status", "said"), [("impossible", 422, "this text cannot be translated"), ("fault", 500, "went wrong")]
)
def test_stream_ends_with_error_in_the_middle(url, engine, caplog, bad, status, said):
    one, two, last = streamed(url, {"texts": ["a", "b", bad, *"cdefg"]})
    assert [one["position"], two["position"]] == [[0, 0, 0], [1, 0, 0]]
    assert last["status"] == status and said in last["error"] and ".py" not in last["error"]
    assert ("a fault in" in caplog.text) == (status == 500)  # the log has tracebacks of unexpected errors only
    wait_for(lambda: answers(url, status) == 1)
    assert not any("g" in batch for batch in engine.batches)
    with streaming(url, {"texts": [bad, "c"]}) as (found, lines):
        assert (found, said in next(lines)["error"]) == (status, True)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"texts": ["a", "a " * 20]}, "texts[1] must have at most 20 tokens"),
        ({"texts": ["a"], "to": "de"}, "no language tags"),
        ({"texts": ["a\nb", "a\n\n" * 7]}, "at most 8 non-blank lines"),
    ],
)
def test_stream_refuses_wrong_request_before_it_begins(url, engine, body, said):
    ask(url, body={**body, "stream": True}).refused(422, said)
    assert not engine.batches


def test_stream_is_refused_by_full_queue(url, engine, pool):
    block(pool, url, engine)
    others = [pool.submit(streamed, url, {"texts": ["w"] * 8}) for _ in range(2)]
    wait_for(lambda: waiting(url) == 16)
    refused = ask(url, body={"texts": ["x"] * 8, "stream": True})
    refused.refused(503, "queue is full")
    assert int(refused.headers["retry-after"]) >= 1
    engine.gate.set()
    assert all(len(other.result()) == 9 for other in others)


def test_disconnected_stream_leaves_queue(url, engine):
    close_after_first_batch(engine)
    body = json.dumps({"texts": [*"abcde", "gone"], "stream": True}).encode()
    with raw_request(url, "Content-Type: application/json", f"Content-Length: {len(body)}", body=body) as connection:
        head = connection.recv(4096).lower()
        assert b"content-type: application/x-ndjson" in head and b"x-accel-buffering: no" in head
        wait_for(lambda: len(engine.batches) == 2)
        assert waiting(url) == 1
    wait_for(lambda: waiting(url) == 0)
    engine.gate.set()
    assert ask(url, body={"texts": ["one"]}).outputs == [[("eno", 0)]]
    assert engine.batches == [["a"], [*"bcde"], ["one"]]
    wait_for(lambda: answers(url, 499) == 1)


def test_late_stream_ends_with_error(engine):
    close_after_first_batch(engine)
    with serving(application(engine, replace(LIMITS, seconds=3.0))) as url:
        with streaming(url, {"texts": ["one", "two", "three", "four"]}) as (status, lines):
            assert (status, next(lines)["position"]) == (200, [0, 0, 0])
            assert list(lines) == [{"error": "There was no answer within 3 seconds. Try again later.", "status": 504}]
        wait_for(lambda: answers(url, 504) == 1)
        assert waiting(url) == 0
        engine.gate.set()
