"""Tests of the web application with an engine that reverses texts: answers, batches, limits and errors."""

import json
import re
import time
from dataclasses import replace

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from helpers.served import LIMITS, Backwards, ask, block, metrics, raw_request, serving, waiting  # noqa: E402
from helpers.waiting import wait_for  # noqa: E402

from keras_transformer.data.placeholders import hide_spans  # noqa: E402
from keras_transformer.server.application import application  # noqa: E402
from keras_transformer.server.batcher import MAX_CALLS  # noqa: E402
from keras_transformer.server.engines import Output  # noqa: E402
from keras_transformer.utils.errors import NonFiniteOutputs  # noqa: E402

# Answers


def test_translate_answers_each_text(url):
    answer = ask(url, body={"texts": ["one two", "", "three"], "nbest": 2})
    assert answer.outputs == [[("owt eno", 0), ("owt eno1", -1)], [("", 0)], [("eerht", 0), ("eerht1", -1)]]
    assert ask(url, body={"texts": ["ü 日本 😀"]}).outputs == [[("😀 本日 ü", 0)]]


def test_translate_keeps_lines_of_a_text(url, engine):
    texts = ["one two\n\nthree", "a\r\nb\u2028c\n", " \n \n", "\n d"]
    answer = ask(url, body={"texts": texts, "nbest": 2})
    assert answer.outputs == [
        [("owt eno\n\neerht", 0), ("owt eno1\n\neerht1", -1)],  # the score is the mean over lines
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


def test_translate_splits_lines_into_sentences(splitting_url, engine):
    answer = ask(splitting_url, body={"texts": ["Dr. A ran. It fell!\n\nOne.", " \n", "Two. "], "nbest": 2})
    assert answer.outputs == [
        [(".nar A .rD !llef tI\n\n.enO", 0), (".nar A .rD1 !llef tI1\n\n.enO1", -1)],
        [("", 0)],
        [(".owT", 0), (".owT1", -1)],
    ]
    assert sorted(sum(engine.batches, [])) == ["Dr. A ran.", "It fell!", "One.", "Two."]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (
            ["a", "One.\nIt fell. We " + "go " * 19],
            "sentence 2 of line 2 of texts[1] must have at most 20 tokens, got 21.",
        ),
        (["a\n" * 9], "texts must have at most 8 non-blank lines, got 9."),
        (["It fell. " * 11] * 2, "texts must have at most 20 sentences, got 22. Send fewer at a time."),
    ],
)
def test_translate_limits_sentences(splitting_url, texts, said):
    ask(splitting_url, body={"texts": texts}).refused(422, said)


def test_translate_names_the_text_of_an_error(splitting_url, engine, monkeypatch):
    def fail(texts, nbest):
        if "We ran." in texts:
            raise NonFiniteOutputs(texts.index("We ran."))
        return [[Output(text, 0.0)] for text in texts]

    monkeypatch.setattr(engine, "translate", fail)
    answer = ask(splitting_url, body={"texts": ["One.", "It fell. We ran."]})
    answer.refused(500, "outputs for sentence 2 of texts[1] must be finite")


def test_translate_splits_around_protected_spans(splitting_url, engine):
    text = "See <ph>A. B</ph>. Go to www.x.org."
    ask(splitting_url, body={"texts": [text]})
    engine.placeholders = 2
    ask(splitting_url, body={"texts": [text]})
    before, after = sum(engine.batches, [])[:-2], sum(engine.batches, [])[-2:]
    assert len(before) == 3 and after == ["See <ph>A. B</ph>.", "Go to www.x.org."]


def test_translate_names_the_text_with_too_many_spans(url, engine, monkeypatch):
    def lengths(texts):
        hide_spans(texts, 1)
        return [2] * len(texts)

    monkeypatch.setattr(engine, "lengths", lengths)
    answer = ask(url, body={"texts": ["a", "b\n<ph>c</ph> <ph>d</ph>"]})
    answer.refused(422, "line 2 of texts[1] must have at most 1 spans in <ph>…</ph>, got 2. Mark fewer spans, or split")


def test_translate_batches_across_clients(url, engine, pool):
    def client(number):
        for i in range(20):
            texts = [f"{number}.{i}.{n}" for n in range(1 + (number + i) % 3)]
            nbest = 1 + (number + i) % 2
            found = ask(url, body={"texts": texts, "nbest": nbest}).outputs
            assert [[text for text, _ in several] for several in found] == [
                [f"{text[::-1]}{n or ''}" for n in range(nbest)] for text in texts
            ]
            yield len(texts)

    count = sum(pool.map(lambda number: sum(client(number)), range(6)))
    assert sum(map(len, engine.batches)) == count
    assert all(len(batch) * max(engine.lengths(batch)) <= 12 or len(batch) == 1 for batch in engine.batches)
    found = metrics(url)
    assert found["texts_total",] == count and found["waiting_texts",] == 0
    assert found["requests_total", "/translate", "200"] == found["request_seconds_count", "/translate"] == 120


def test_health_and_model_are_reported(url):
    assert ask(url, "/healthz").content == {"status": "ok"}
    about = ask(url, "/model").content
    assert (about["model"], about["max_nbest"], about["max_texts"], about["max_tokens"]) == ("backwards", 4, 8, 20)


def test_pages_load_no_external_resources(url):
    for path in ("/", "/docs"):
        page = ask(url, path)
        assert page.status == 200
        found = re.findall(r"""(?:src|href|url)\s*[=:]\s*['"]([^'"]*)""", page.content)
        assert found and not [target for target in found if target.startswith(("http", "//"))]
        for target in found:
            assert target.startswith("data:") or ask(url, f"/{target.lstrip('/')}").status == 200
    assert "default-src 'none'" in ask(url, "/").headers["content-security-policy"]


def test_api_describes_line_breaks(url):
    description = ask(url, "/openapi.json").content["paths"]["/translate"]["post"]["description"]
    assert "each line of a text separately" in description and "same lines as its text, separated by \\n" in description


def test_api_describes_the_request_body(url):
    body = ask(url, "/openapi.json").content["paths"]["/translate"]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    assert body["required"] and schema["required"] == ["texts"]
    assert set(schema["properties"]) == {"texts", "nbest", "to", "stream"}


def test_long_texts_are_prepared_in_a_thread(url, monkeypatch):
    threads = []

    async def to_thread(function, *arguments):
        threads.append(function)
        return function(*arguments)

    monkeypatch.setattr("keras_transformer.server.application.asyncio.to_thread", to_thread)
    assert ask(url, body={"texts": ["one"]}).outputs == [[("eno", 0)]] and not threads
    monkeypatch.setattr("keras_transformer.server.application.MAX_INLINE_CHARACTERS", 2)
    assert ask(url, body={"texts": ["one"]}).outputs == [[("eno", 0)]] and len(threads) == 1
    ask(url, body={"texts": ["a", "a " * 20]}).refused(422, "texts[1] must have at most 20 tokens")


def test_attention_and_tree_paths_depend_on_engine(url):
    paths = ask(url, "/openapi.json").content["paths"]
    assert "/attention" not in paths and "/tree" not in paths
    limits = replace(LIMITS, body_bytes=10_000)
    with serving(application(Backwards(trees=True, shows_attention=True), limits)) as other:
        pair = {"source": "one", "target": "two"}
        assert ask(other, "/attention", pair).content == pair
        ask(other, "/attention", {"source": "one"}).refused(422, "body.target", "Field required")
        svg = ask(other, "/tree", {"tree": "(S (NP (DT The) (NN <dog>)))"}).content["svg"]
        assert svg.startswith("<svg ") and "&lt;dog&gt;" in svg
        ask(other, "/tree", {"tree": "(S (NP"}).refused(422)
        ask(other, "/tree", {"tree": f"(S {'(X x)' * 1001})"}).refused(422, "at most 1,000 words, got 1,001")


def test_translate_tags_lines_with_target_language(url, engine):
    assert ask(url, "/model").content["languages"] == []
    ask(url, body={"texts": ["a"], "to": "de"}).refused(422, "this model has no language tags")
    engine.tags = {"de": "<2de>", "fr": "<2fr>"}
    assert ask(url, "/model").content["languages"] == ["de", "fr"]
    assert ask(url, body={"texts": ["a b\n\nc", "<2fr> d"], "to": "de"}).outputs == [
        [("b a >ed2<\n\nc >ed2<", 0)], [("d >rf2<", 0)]
    ]  # fmt: skip
    assert ask(url, body={"texts": ["<2fr> ", "a\n<2fr>\nb"], "to": "de"}).outputs == [
        [("", 0)],
        [("a >ed2<\n\nb >ed2<", 0)],
    ]
    ask(url, body={"texts": ["a"]}).refused(422, "must begin with the tag of its target language, such as <2de>")
    ask(url, body={"texts": ["a"], "to": "ge"}).refused(422, "unknown target language 'ge': did you mean de?")
    ask(url, body={"texts": ["a"], "to": 1}).refused(422, "body.to", "valid string")


def test_translate_tags_each_sentence_of_a_line(splitting_url, engine):
    engine.tags = {"de": "<2de>", "fr": "<2fr>"}
    assert ask(splitting_url, body={"texts": ["<2fr> One. Two."], "to": "de"}).outputs == [
        [(".enO >rf2< .owT >rf2<", 0)]
    ]  # fmt: skip


def test_attention_takes_target_language():
    engine = Backwards(shows_attention=True)
    engine.tags = {"de": "<2de>", "fr": "<2fr>"}
    with serving(application(engine, LIMITS)) as url:
        pair = {"source": "one", "target": "two"}
        assert ask(url, "/attention", {**pair, "to": "fr"}).content == {**pair, "source": "<2fr> one"}
        ask(url, "/attention", pair).refused(422, "must begin with the tag")


# Errors


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "JSON"),
        (b"", 400, "JSON"),
        (b'{"texts": ["\xff"]}', 400, "JSON"),
        (b"[" * 3000, 400, ""),
        (b"[]", 422, "body"),
        (b"null", 422, "body"),
        (b'{"texts": ["\\ud800"]}', 400, "hex escape"),
        (b'{"texts": ["a"], "\\ud800": 1}', 400, "hex escape"),
        ({}, 422, "'body.texts': Field required"),
        ({"texts": "one"}, 422, "valid array"),
        ({"texts": []}, 422, "at least 1 item"),
        ({"texts": ["one", 2]}, 422, "'body.texts.1': Input should be a valid string"),
        ({"texts": ["a"] * 9}, 422, "at most 8 items"),
        ({"texts": ["a" * 101]}, 422, "'body.texts.0': String should have at most 100 characters"),
        ({"texts": ["a", "a " * 20]}, 422, "texts[1] must have at most 20 tokens, got 21. Split it into sentences."),
        ({"texts": ["a", "b\n\n" + "a " * 20]}, 422, "line 3 of texts[1] must have at most 20 tokens, got 21."),
        ({"texts": ["a\nb", "a\n\n" * 7]}, 422, "texts must have at most 8 non-blank lines, got 9. Send fewer"),
        ({"texts": ["a"], "nbest": 0}, 422, "greater than or equal to 1"),
        ({"texts": ["a"], "nbest": 5}, 422, "less than or equal to 4"),
        ({"texts": ["a"], "nbest": "2"}, 422, "valid integer"),
        ({"texts": ["a"], "stream": 1}, 422, "'body.stream': Input should be a valid boolean"),
        ({"texts": ["a"], "beams": 3}, 422, "'body.beams': Extra inputs are not permitted"),
        ({"texts": ["a"], "x" * 3000: 3}, 422, "Extra inputs"),
        (b" " * 4001, 413, "at most 4,000 bytes"),
        (b" " * 60_000, 413, "at most 4,000 bytes"),
        (b" " * (20 << 20), 413, "at most 4,000 bytes"),
        ({"texts": ["impossible"]}, 422, "this text cannot be translated"),
        ({"texts": ["a fault"]}, 500, "Something went wrong"),
    ],
)  # fmt: skip
def test_translate_explains_wrong_request(url, body, status, said):
    answer = ask(url, body=body)
    answer.refused(status, said)
    assert len(answer.content["error"]) < 200
    assert ask(url, body={"texts": ["one"]}).outputs == [[("eno", 0)]]


@pytest.mark.parametrize(("path", "status"), [("/nothing", 404), ("/translate", 405), ("/static/../page.js", 404)])
def test_unknown_path_is_an_error_response(url, path, status):
    ask(url, path).refused(status)


@pytest.mark.parametrize(
    ("kind", "status"),
    [("", 422), ("text/plain", 422), ("application/jsonl", 422), ("Application/JSON; charset=utf-8", 200)],
)
def test_translate_requires_json_content_type(url, kind, status):
    headers = [f"Content-Type: {kind}"] if kind else []
    with raw_request(url, *headers, "Content-Length: 15", "Connection: close", body=b'{"texts":["a"]}') as answer:
        assert answer.recv(4096).startswith(b"HTTP/1.1 %d " % status)


def test_faulty_text_does_not_affect_others(url, engine, pool):
    first = block(pool, url, engine)
    others = [pool.submit(ask, url, body={"texts": [text]}) for text in ("a", "fault", "b", "impossible", "c")]
    wait_for(lambda: waiting(url) == 5)
    engine.gate.set()
    assert first.result().outputs == [[("tsrif", 0)]]
    assert [other.result().status for other in others] == [200, 500, 200, 422, 200]


# Queue and timeouts


def test_waiting_texts_share_a_batch(url, engine, pool):
    first = block(pool, url, engine)
    others = [pool.submit(ask, url, body={"texts": [text]}) for text in "abcd"]
    wait_for(lambda: waiting(url) == 4)
    engine.gate.set()
    assert [answer.result().outputs[0][0][0] for answer in (first, *others)] == ["tsrif", *"abcd"]
    assert [sorted(batch) for batch in engine.batches] == [["first"], ["a", "b", "c", "d"]]


def test_full_queue_answers_503_with_retry_after(url, engine, pool):
    first = block(pool, url, engine)
    others = [pool.submit(ask, url, body={"texts": ["w"] * 8}) for _ in range(2)]
    wait_for(lambda: waiting(url) == 16)
    refused = ask(url, body={"texts": ["x"] * 8})
    refused.refused(503, "queue is full")
    assert 1 <= int(refused.headers["retry-after"]) <= LIMITS.seconds
    engine.gate.set()
    assert first.result().status == 200 and all(other.result().outputs == [[("w", 0)]] * 8 for other in others)
    assert not any("x" in batch for batch in engine.batches)
    assert metrics(url)["refused_total",] == 1


def test_late_request_gets_504_and_leaves_queue(engine, pool):
    with serving(application(engine, replace(LIMITS, seconds=3.0), batch_tokens=12, wait=0.02)) as url:
        first = block(pool, url, engine)
        late = [pool.submit(ask, url, body={"texts": ["late"]}) for _ in range(3)]
        for answer in (first, *late):
            answer.result().refused(504, "within 3 seconds")
        assert waiting(url) == 0
        engine.gate.set()
        assert ask(url, body={"texts": ["one"]}).outputs == [[("eno", 0)]]
    assert not any("late" in batch for batch in engine.batches)


def test_disconnected_client_leaves_queue(url, engine, pool):
    first = block(pool, url, engine)
    body = json.dumps({"texts": ["gone"] * 3}).encode()
    with raw_request(url, "Content-Type: application/json", f"Content-Length: {len(body)}", body=body):
        wait_for(lambda: waiting(url) == 3)
    wait_for(lambda: waiting(url) == 0)
    other = pool.submit(ask, url, body={"texts": ["other"]})
    engine.gate.set()
    assert first.result().outputs == [[("tsrif", 0)]] and other.result().outputs == [[("rehto", 0)]]
    assert not any("gone" in batch for batch in engine.batches)
    assert metrics(url)["requests_total", "/translate", "499"] == 1


def test_client_may_disconnect_before_the_end_of_its_body(url):
    with raw_request(url, "Content-Type: application/json", "Content-Length: 99", body=b"{"):
        pass
    wait_for(lambda: metrics(url).get(("requests_total", "/translate", "499")) == 1)


def test_incomplete_body_gets_408(engine):
    with (
        serving(application(engine, replace(LIMITS, seconds=1.0))) as url,
        raw_request(url, "Content-Type: application/json", "Content-Length: 99", body=b"{") as slow,
    ):
        assert slow.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_attention_alternates_with_batches_and_is_limited(pool):
    engine = Backwards(shows_attention=True)
    with serving(application(engine, LIMITS)) as url:
        first = block(pool, url, engine)
        engine.map_gate.clear()
        maps = [pool.submit(ask, url, "/attention", {"source": "a", "target": "b"}) for _ in range(12)]
        wait_for(lambda: sum(one.done() for one in maps) == 12 - MAX_CALLS)
        second = pool.submit(ask, url, body={"texts": ["second"]})
        wait_for(lambda: waiting(url) == 1)
        engine.gate.set()
        assert first.result().outputs == [[("tsrif", 0)]]
        wait_for(lambda: waiting(url) == 0)  # the second text waits only for the attention map in progress
        engine.map_gate.set()
        assert second.result().outputs == [[("dnoces", 0)]]
        statuses = sorted(one.result().status for one in maps)
    assert statuses == [200] * MAX_CALLS + [503] * (12 - MAX_CALLS)
    assert engine.drawn_before == [0, 1] and engine.drawn == MAX_CALLS


def test_health_reports_stuck_model(engine):
    with serving(application(engine, replace(LIMITS, seconds=0.3))) as url:
        assert ask(url, "/healthz").status == 200
        engine.gate.clear()
        ask(url, body={"texts": ["one"]}).refused(504)
        wait_for(lambda: ask(url, "/healthz").status == 503)
        engine.gate.set()
        wait_for(lambda: ask(url, "/healthz").status == 200)


def test_server_stops_while_model_is_stuck(engine, pool):
    with serving(application(engine, replace(LIMITS, seconds=1.0))) as url:
        late = block(pool, url, engine)
        start = time.monotonic()
    assert time.monotonic() - start < 10  # without the time limit, the engine would block the server for 30 s
    late.result().refused(504)
    engine.gate.set()
