"""The web application with an engine that is no model: what it answers, to whom, and what it refuses."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import re
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from helpers.served import Backwards, ask, serving  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from keras_transformer.server.application import application  # noqa: E402
from keras_transformer.server.batcher import MOST_TURNS, Batcher, QueueFull  # noqa: E402
from keras_transformer.server.connections import impatient  # noqa: E402
from keras_transformer.server.engines import Output  # noqa: E402
from keras_transformer.server.limits import Limits  # noqa: E402

LIMITS = Limits(texts=8, characters=100, body_bytes=4000, waiting=20, seconds=30.0)
"""Whoever tests what takes too long has fewer seconds: a machine that others use, too, may stand still for some."""


@pytest.fixture
def engine():
    return Backwards()


@pytest.fixture
def url(engine):
    with serving(application(engine, LIMITS, batch_tokens=12, wait=0.02)) as url:
        yield url
        engine.gate.set()


def measured(url):
    """{name and labels: value} of all measures."""
    families = text_string_to_metric_families(ask(url, "/metrics").content)
    return {(one.name, *sorted(one.labels.values())): one.value for family in families for one in family.samples}


def later(pool, *arguments, **options):
    return pool.submit(ask, *arguments, **options)


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_every_text_gets_its_own_translations(url):
    answer = ask(url, body={"texts": ["one two", "", "three"], "nbest": 2})
    assert answer.outputs == [[("owt eno", 0), ("owt eno1", -1)], [("", 0)], [("eerht", 0), ("eerht1", -1)]]
    assert ask(url, body={"texts": ["ü 日本 😀"]}).outputs == [[("😀 本日 ü", 0)]]


def test_translate_keeps_every_line_of_a_text(url, engine):
    texts = ["one two\n\nthree", "a\r\nb\u2028c\n", " \n \n", "\n d"]
    answer = ask(url, body={"texts": texts, "nbest": 2})
    assert answer.outputs == [
        [("owt eno\n\neerht", 0), ("owt eno1\n\neerht1", -1)],  # a score is the mean of the lines' scores
        [("a\nb\nc", 0), ("a1\nb1\nc1", -1)],
        [("", 0)],
        [("\nd ", 0), ("\nd 1", -1)],
    ]
    assert sorted(line for batch in engine.batches for line in batch) == [" d", "a", "b", "c", "one two", "three"]


def test_translate_joins_lines_with_fewer_translations(url, engine, monkeypatch):
    found = {"a": [Output("A", -1.0), Output("B", -2.0)], "b": [Output("C", -4.0)], "c": [Output("D", None)]}
    monkeypatch.setattr(engine, "translate", lambda texts, nbest: [found[text] for text in texts])
    outputs = ask(url, body={"texts": ["a\nb", "b\nc"], "nbest": 2}).outputs
    assert outputs == [[("A\nC", -2.5), ("B\nC", -3.0)], [("C\nD", None)]]


def test_many_clients_get_what_they_asked_for_and_are_served_together(url, engine):
    def client(number):
        for i in range(20):
            texts = [f"{number}.{i}.{n}" for n in range(1 + (number + i) % 3)]
            nbest = 1 + (number + i) % 2
            found = ask(url, body={"texts": texts, "nbest": nbest}).outputs
            assert [[text for text, _ in several] for several in found] == [
                [f"{text[::-1]}{n or ''}" for n in range(nbest)] for text in texts
            ]
            yield len(texts)

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        count = sum(pool.map(lambda number: sum(client(number)), range(6)))
    assert sum(map(len, engine.batches)) == count
    assert all(len(batch) * max(engine.lengths(batch)) <= 12 or len(batch) == 1 for batch in engine.batches)
    found = measured(url)
    assert found["texts_total",] == count and found["waiting_texts",] == 0
    assert found["requests_total", "/translate", "200"] == 120
    assert found["request_seconds_count", "/translate"] == 120


@pytest.mark.parametrize(
    "body, status, said",
    [
        (b"{", 400, "not JSON"),
        (b"", 422, "JSON object"),
        (b'{"texts": ["\xff"]}', 400, "UTF-8"),
        (b"[" * 3000, 400, "not JSON"),
        (b"[]", 422, "JSON object"),
        (b"null", 422, ""),
        (b'{"texts": ["\\ud800"]}', 422, "half of a character"),
        ({}, 422, "texts is missing"),
        ({"texts": "one"}, 422, "texts must be a list"),
        ({"texts": []}, 422, "texts is empty"),
        ({"texts": ["one", 2]}, 422, "texts[1] must be a text"),
        ({"texts": ["a"] * 9}, 422, "texts has more than 8 entries"),
        ({"texts": ["a" * 101]}, 422, "texts[0] has more than 100 characters"),
        ({"texts": ["a", "a " * 20]}, 422, "texts[1] must have at most 20 tokens, got 21. Split it into sentences."),
        ({"texts": ["a", "b\n\n" + "a " * 20]}, 422, "line 3 of texts[1] must have at most 20 tokens, got 21."),
        ({"texts": ["a\nb", "a\n\n" * 7]}, 422, "texts must have at most 8 non-blank lines, got 9. Send fewer"),
        ({"texts": ["a"], "nbest": 0}, 422, "nbest must be at least 1"),
        ({"texts": ["a"], "nbest": 5}, 422, "nbest must be at most 4"),
        ({"texts": ["a"], "nbest": "2"}, 422, "nbest must be a whole number"),
        ({"texts": ["a"], "nbest": 1.5}, 422, "nbest must be a whole number"),
        ({"texts": ["a"], "beams": 3}, 422, "there is no field 'beams'"),
        ({"texts": ["a"], "x" * 3000: 3}, 422, "there is no field"),
        (b" " * 4001, 413, "more than 4,000 bytes"),
        ({"texts": ["impossible"]}, 422, "this text cannot be translated"),
        ({"texts": ["a fault"]}, 500, "something went wrong here"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(url, body, status, said):
    answer = ask(url, body=body)
    answer.refused(status, said)
    assert len(answer.content["error"]) < 200
    assert ask(url, body={"texts": ["one"]}).outputs == [[("eno", 0)]]


@pytest.mark.parametrize("path, status", [("/nothing", 404), ("/translate", 405), ("/static/../page.js", 404)])
def test_what_is_not_there_is_said(url, path, status):
    ask(url, path).refused(status, "/docs")


def test_without_a_json_content_type_it_is_said(url):
    with socket.create_connection(url.removeprefix("http://").split(":")) as plain:
        plain.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\nConnection: close\r\n\r\n"
                      b'{"texts":["a"]}')  # fmt: skip
        assert b"Content-Type: application/json" in b"".join(iter(lambda: plain.recv(4096), b""))


def test_a_text_that_fails_harms_no_other(url, engine):
    engine.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        first = later(pool, url, body={"texts": ["first"]})
        wait_until(lambda: engine.batches)
        others = [later(pool, url, body={"texts": [text]}) for text in ("a", "fault", "b", "impossible", "c")]
        wait_until(lambda: measured(url)["waiting_texts",] == 5)
        engine.gate.set()
        assert first.result().outputs == [[("tsrif", 0)]]
        statuses = [other.result().status for other in others]
    assert statuses == [200, 500, 200, 422, 200]


def test_what_waits_together_is_translated_together(url, engine):
    engine.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [later(pool, url, body={"texts": ["first"]})]
        wait_until(lambda: engine.batches)
        answers += [later(pool, url, body={"texts": [text]}) for text in "abcd"]
        wait_until(lambda: measured(url)["waiting_texts",] == 4)
        engine.gate.set()
        assert [answer.result().outputs[0][0][0] for answer in answers] == ["tsrif", *"abcd"]
    assert [sorted(batch) for batch in engine.batches] == [["first"], ["a", "b", "c", "d"]]


def test_more_than_may_wait_is_refused_at_once_and_told_when_to_come_again(url, engine):
    engine.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        waiting = [later(pool, url, body={"texts": ["w"] * 8})]
        wait_until(lambda: engine.batches)
        waiting += [later(pool, url, body={"texts": ["w"] * 8}) for _ in range(2)]
        wait_until(lambda: measured(url)["waiting_texts",] >= 16)
        refused = ask(url, body={"texts": ["x"] * 8})
        refused.refused(503, "too much is waiting")
        assert 1 <= int(refused.headers["retry-after"]) <= LIMITS.seconds
        engine.gate.set()
        assert all(answer.result().outputs == [[("w", 0)]] * 8 for answer in waiting)
    assert not any("x" in batch for batch in engine.batches)
    assert measured(url)["refused_total",] == 1


def test_what_takes_too_long_is_told_and_what_waited_is_taken_back(engine):
    engine.gate.clear()
    limits = dataclasses.replace(LIMITS, seconds=3.0)
    with (
        serving(application(engine, limits, batch_tokens=12, wait=0.02)) as url,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        late = [later(pool, url, body={"texts": ["late"]}) for _ in range(3)]
        for answer in late:
            answer.result().refused(504, "within 3 seconds")
        assert measured(url)["waiting_texts",] == 0
        engine.gate.set()
        assert ask(url, body={"texts": ["one"]}).outputs == [[("eno", 0)]]
    assert sum(text == "late" for batch in engine.batches for text in batch) < 3 or len(engine.batches[0]) == 3


def test_a_client_that_goes_stops_no_other_and_its_texts_are_not_translated(url, engine):
    engine.gate.clear()
    content = json.dumps({"texts": ["gone"] * 3}).encode()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        first = later(pool, url, body={"texts": ["first"]})
        wait_until(lambda: engine.batches)
        with socket.create_connection(url.removeprefix("http://").split(":")) as client:
            head = "POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(content)}"
            client.sendall(head.encode() + b"\r\n\r\n" + content)
            wait_until(lambda: measured(url)["waiting_texts",] == 3)
        wait_until(lambda: measured(url)["waiting_texts",] == 0)
        other = later(pool, url, body={"texts": ["other"]})
        engine.gate.set()
        assert first.result().outputs == [[("tsrif", 0)]] and other.result().outputs == [[("rehto", 0)]]
    assert not any("gone" in batch for batch in engine.batches)
    assert measured(url)["requests_total", "/translate", "499"] == 1


def test_a_body_that_does_not_come_is_given_up(engine):
    with (
        serving(application(engine, dataclasses.replace(LIMITS, seconds=1.0))) as url,
        socket.create_connection(url.removeprefix("http://").split(":")) as slow,
    ):
        slow.sendall(
            b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        )
        slow.settimeout(10)
        assert slow.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_a_large_body_is_refused_where_its_sender_sees_it(url):
    ask(url, body=b" " * 60_000).refused(413, "more than 4,000 bytes")
    with contextlib.suppress(OSError):  # of one that is larger still not all is read
        ask(url, body=b" " * (20 << 20))
    assert ask(url, body={"texts": ["one"]}).outputs == [[("eno", 0)]]


def test_connections_that_ask_for_nothing_are_closed(engine):
    with serving(application(engine, LIMITS), http=impatient(0.3)) as url:
        with socket.create_connection(url.removeprefix("http://").split(":")) as idle:
            idle.sendall(b"POST /trans")
            idle.settimeout(10)
            assert idle.recv(100) == b""
        engine.gate.clear()  # one whose request is at work is not
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = later(pool, url, body={"texts": ["one"]})
            time.sleep(1.2)
            engine.gate.set()
            assert answer.result().outputs == [[("eno", 0)]]


def test_attention_does_not_hold_up_translations_and_too_much_of_it_is_refused():
    engine = Backwards(shows_attention=True)
    with serving(application(engine, LIMITS)) as url, concurrent.futures.ThreadPoolExecutor(30) as pool:
        engine.gate.clear()
        first = later(pool, url, body={"texts": ["first"]})
        wait_until(lambda: engine.batches)
        asked = [later(pool, url, "/attention", {"source": "a", "target": "b"}) for _ in range(12)]
        wait_until(lambda: sum(one.done() for one in asked) == 12 - MOST_TURNS)
        second = later(pool, url, body={"texts": ["second"]})
        wait_until(lambda: measured(url)["waiting_texts",] == 1)
        engine.gate.set()
        assert first.result().outputs == [[("tsrif", 0)]] and second.result().outputs == [[("dnoces", 0)]]
        statuses = sorted(one.result().status for one in asked)
    assert statuses == [200] * MOST_TURNS + [503] * (12 - MOST_TURNS)
    assert engine.drawn_before == [0, 1] and engine.drawn == MOST_TURNS


def test_health_tells_when_the_model_is_stuck(engine):
    with serving(application(engine, dataclasses.replace(LIMITS, seconds=0.3))) as url:
        assert ask(url, "/healthz").status == 200
        engine.gate.clear()
        ask(url, body={"texts": ["one"]}).refused(504)
        wait_until(lambda: ask(url, "/healthz").status == 503)
        engine.gate.set()
        wait_until(lambda: ask(url, "/healthz").status == 200)


def test_it_ends_though_the_model_is_stuck(engine):
    engine.gate.clear()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with serving(application(engine, dataclasses.replace(LIMITS, seconds=1.0))) as url:
            late = later(pool, url, body={"texts": ["one"]})
            wait_until(lambda: engine.batches)
            began = time.monotonic()
        assert time.monotonic() - began < 10  # and not the 30 seconds that the gate stays closed
        late.result().refused(504)


def test_health_and_what_is_served(url):
    assert ask(url, "/healthz").content == {"status": "ok"}
    about = ask(url, "/model").content
    assert (about["model"], about["most_nbest"], about["most_texts"], about["most_tokens"]) == ("backwards", 4, 8, 20)


def test_the_pages_take_nothing_from_elsewhere(url):
    for path in ("/", "/docs"):
        page = ask(url, path)
        assert page.status == 200
        found = re.findall(r"""(?:src|href|url)\s*[=:]\s*['"]([^'"]*)""", page.content)
        assert found and not [target for target in found if target.startswith(("http", "//"))]
        for target in found:
            assert target.startswith("data:") or ask(url, f"/{target}").status == 200
    assert "default-src 'none'" in ask(url, "/").headers["content-security-policy"]


def test_api_describes_line_breaks(url):
    description = ask(url, "/openapi.json").content["paths"]["/translate"]["post"]["description"]
    assert "each line of a text separately" in description and "line breaks of its text, as \\n" in description
    texts = ["a b\r\n\nc d\u2028e\n"]
    ((found,),) = ask(url, "/translate", {"texts": texts}).content["translations"]
    assert found["text"] == "b a\n\nd c\ne"


def test_attention_and_trees_are_there_where_the_engine_has_them(url):
    paths = ask(url, "/openapi.json").content["paths"]
    assert "/attention" not in paths and "/tree" not in paths
    with serving(application(Backwards(trees=True, shows_attention=True), LIMITS)) as other:
        pair = {"source": "one", "target": "two"}
        assert ask(other, "/attention", pair).content == pair
        ask(other, "/attention", {"source": "one"}).refused(422, "target is missing")
        svg = ask(other, "/tree", {"tree": "(S (NP (DT The) (NN <dog>)))"}).content["svg"]
        assert svg.startswith("<svg ") and "&lt;dog&gt;" in svg
        ask(other, "/tree", {"tree": "(S (NP"}).refused(422)


class TestBatcher:
    """What a batch holds."""

    @given(
        arrivals=st.lists(st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.booleans()), max_size=12),
        batch_tokens=st.integers(1, 30), batch_rows=st.integers(1, 6),
    )  # fmt: skip
    def test_every_item_is_done_once_in_order_within_the_budget(self, arrivals, batch_tokens, batch_rows):
        batches = []

        def work(items):
            batches.append(list(items))
            return [("done", item) for item in items]

        async def everything():
            made = Batcher(work, batch_tokens=batch_tokens, batch_rows=batch_rows, wait=0.0005, most_waiting=1000)
            async with made.running():
                tasks, number = [], 0
                for tokens, pause in arrivals:
                    items = [(number + i, count) for i, count in enumerate(tokens)]
                    number += len(items)
                    tasks.append((items, asyncio.create_task(made.results(items, tokens))))
                    await asyncio.sleep(0.001 if pause else 0)
                return [(items, await task) for items, task in tasks]

        for items, results in asyncio.run(everything()):
            assert results == [("done", item) for item in items]
        done = [number for batch in batches for number, _ in batch]
        assert done == list(range(sum(len(tokens) for tokens, _ in arrivals)))
        for batch in batches:
            assert len(batch) <= batch_rows
            assert len(batch) == 1 or len(batch) * max(tokens for _, tokens in batch) <= batch_tokens

    def test_under_more_load_than_can_be_done_what_is_accepted_is_done_in_time(self):
        """Without refusing what would come too late, all would wait until it is too late, and nothing be of use."""
        done, refused, late = [], [], []

        def work(items):
            time.sleep(0.02)
            done.extend(items)
            return items

        async def everything():
            made = Batcher(work, batch_tokens=4, batch_rows=4, wait=0, most_waiting=10_000)  # 200 items a second

            async def client():
                for _ in range(40):
                    try:
                        async with asyncio.timeout(0.6):
                            await made.results(["a"], [1], seconds=0.6)
                            answered.append("a")
                    except QueueFull as full:
                        refused.append(full.seconds)
                        await asyncio.sleep(0.05)
                    except TimeoutError:
                        late.append("a")

            answered = []
            async with made.running():
                await asyncio.gather(*(client() for _ in range(400)))
            return answered

        answered = asyncio.run(asyncio.wait_for(everything(), 60))
        assert refused and set(refused) == {1}
        assert len(answered) > 2 * len(late)
        assert len(answered) > 0.6 * len(done)  # little is done for nobody

    def test_what_is_cancelled_while_it_waits_is_not_done(self):
        seen = []

        async def everything():
            made = Batcher(seen.extend, batch_tokens=9, batch_rows=9, wait=0.05, most_waiting=4)
            async with made.running():
                task = asyncio.create_task(made.results(["a", "b"], [1, 1]))
                await asyncio.sleep(0)
                with pytest.raises(QueueFull):
                    await made.results(["c"] * 3, [1] * 3)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert len(made) == 0

        asyncio.run(everything())
        assert seen == []
