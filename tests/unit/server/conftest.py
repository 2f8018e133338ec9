"""An engine that reverses texts, and servers with this engine."""

import concurrent.futures

import pytest


@pytest.fixture
def engine():
    from helpers.served import Backwards

    return Backwards()


@pytest.fixture
def url(engine):
    from helpers.served import LIMITS, serving

    from keras_transformer.server.application import application

    with serving(application(engine, LIMITS, batch_tokens=12, wait=0.02)) as url:
        yield url
        engine.gate.set()


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        yield pool


@pytest.fixture
def splitting_url(engine):
    pytest.importorskip("sentencex")
    from helpers.served import LIMITS, serving

    from keras_transformer.server.application import application

    with serving(application(engine, LIMITS, language="en")) as url:
        yield url
