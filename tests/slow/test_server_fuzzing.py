"""Fuzz test of the web application, whose responses must match its OpenAPI description."""

import collections

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi")
schemathesis = pytest.importorskip("schemathesis")

from helpers.served import Backwards, serving  # noqa: E402
from schemathesis import checks  # noqa: E402

from keras_transformer.server.application import application  # noqa: E402
from keras_transformer.server.limits import Limits  # noqa: E402

CHECKS = [
    checks.not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
    checks.response_schema_conformance, checks.negative_data_rejection,
]  # fmt: skip
# The checks would reject status 413 (body too large), so the limit of the body size is high.
LIMITS = Limits(texts=8, characters=100, body_bytes=1 << 20, waiting=20, seconds=30.0)


@pytest.fixture(scope="module")
def described():
    """Return the schema in the OpenAPI description of a server with all optional paths."""
    with serving(application(Backwards(trees=True, shows_attention=True), LIMITS)) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


def test_server_answers_as_described(described):
    modes, statuses = schemathesis.GenerationMode, collections.defaultdict(set)

    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def answered(operation, mode, data):
        case = data.draw(operation.as_strategy(generation_mode=mode))
        statuses[operation.label].add(case.call_and_validate(checks=CHECKS).status_code)

    for operation in (found.ok() for found in described.get_all_operations()):
        answered(operation, modes.POSITIVE)
        if operation.body:
            answered(operation, modes.NEGATIVE)
    assert statuses.keys() == {
        "POST /translate", "POST /attention", "POST /tree", "GET /model", "GET /healthz", "GET /metrics",
    }  # fmt: skip
    assert statuses["POST /translate"] >= {200, 422} and statuses["GET /metrics"] == {200}
