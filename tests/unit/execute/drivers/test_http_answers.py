"""Test what the answer of an HTTP service means: its kinds of bodies, its pauses and its own words."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from deputize.catalog.importers.openapi.contracts import build_service
from deputize.catalog.importers.openapi.document import parse_document
from deputize.core.contract.tools import HttpTool
from deputize.core.errors import (
    OutcomeUnknown,
    Problem,
    SemanticViolation,
    ToolConflict,
    ToolFailed,
    ToolPrecondition,
    UpstreamRateLimited,
    UpstreamUnavailable,
)
from deputize.execute.drivers.http_answers import build_result
from deputize.execute.egress import HttpAnswer
from deputize.execute.upstreams.faults import UnreadableAnswer
from tests.support.openapi_service import make_document, make_service

pytestmark = pytest.mark.requirement("EXE-1")
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def make_tool(operation: str = "getOrder", **request: Any) -> HttpTool:
    contract = build_service(make_service(), parse_document(orjson.dumps(make_document()))).contracts[operation]
    assert contract.handler.request is not None
    return HttpTool(contract=contract, service="orders", request=contract.handler.request.model_copy(update=request))


def read(status: int, body: bytes = b"", **headers: str) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return build_result(make_tool(), HttpAnswer(status=status, headers=named, body=body), {}, NOW, had_credential=True)


def catch(status: int, body: bytes = b"", **headers: str) -> Problem:
    with pytest.raises(Problem) as caught:
        read(status, body, **headers)
    return caught.value


def test_a_body_is_given_as_what_it_is() -> None:
    assert read(204) == {"status": 204}
    assert read(200, b"[1]", content_type="application/hal+json; charset=utf-8") == {"status": 200, "body": [1]}
    assert read(200, b"a,b", content_type="text/csv") == {"status": 200, "text": "a,b", "media_type": "text/csv"}
    assert read(200, b"\xff\x00", content_type="image/png") == {
        "status": 200, "base64": "/wA=", "media_type": "image/png",
    }  # fmt: skip
    assert read(200, b"x")["media_type"] == "application/octet-stream"
    with pytest.raises(UnreadableAnswer):
        read(200, b"{", content_type="application/json")


@pytest.mark.parametrize(
    ("pause", "milliseconds"),
    [("7", 7_000), ("999999999", 3_600_000), ("Tue, 01 Jan 2030 00:00:30 GMT", 30_000), ("soon", None), ("", None),
     ("Tue, 01 Jan 2019 00:00:30 GMT", 0), ("Tue, 01 Jan 99999999999999999999 00:00:30 GMT", None),
     ("Tue, 01 Jan 2030 00:00:00 +99999999999999999999", None)],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(pause: str, milliseconds: int | None) -> None:
    for status, kind in ((429, UpstreamRateLimited), (503, UpstreamUnavailable)):
        problem = catch(status, retry_after=pause)
        assert isinstance(problem, kind)
        assert problem.retry_after_ms == milliseconds


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"message": "too long"}, "too long"), ({"error": {"message": "too long"}}, "too long"),
        ({"title": "Bad", "detail": "too long"}, "too long"), ({"errors": [{"message": "too long"}]}, "too long"),
        (["too long"], "too long"), ({"code": 7}, ""),
        # FastAPI's.
        ({"detail": [{"type": "value_error", "loc": ["body", "name"], "msg": "too long", "input": "x"}]}, "too long"),
    ],
)  # fmt: skip
def test_the_message_of_the_service_is_found_in_its_usual_places(body: Any, message: str) -> None:
    problem = catch(422, orjson.dumps(body), content_type="application/json")
    assert isinstance(problem, SemanticViolation)
    assert problem.message.endswith(message or "(HTTP 422)")
    assert problem.details == {"status": 422, "body": body}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, ToolFailed), (403, ToolFailed), (404, ToolPrecondition), (409, ToolConflict), (410, ToolPrecondition),
     (412, ToolPrecondition), (422, SemanticViolation)],
)  # fmt: skip
def test_a_refusal_is_the_problem_that_its_status_means(status: int, kind: type[Problem]) -> None:
    problem = catch(status, b'{"message": "no"}', content_type="application/json")
    assert type(problem) is kind
    assert problem.details == {"status": status, "body": {"message": "no"}}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_fails_a_read_and_leaves_the_outcome_of_a_mutation_unknown(status: int) -> None:
    assert type(catch(status, location="/orders/7")) is ToolFailed
    for operation in ("createOrder", "changeOrder", "deleteOrder"):
        answer = HttpAnswer(status=status, headers={"location": "/orders/7"}, body=b"")
        with pytest.raises(OutcomeUnknown, match=r"redirect .* is not followed; it is unknown") as unknown:
            build_result(make_tool(operation), answer, {}, NOW, had_credential=True)
        assert unknown.value.details == {"status": status}
        assert not unknown.value.nothing_happened


def test_the_message_of_the_service_is_short_and_quotes_no_secret() -> None:
    problem = catch(400, b"key sk-proj-AbCdEf0123456789AbCdEf0123456789 " + b"x" * 9000, content_type="text/plain")
    assert "AbCdEf" not in problem.message
    assert len(problem.message) < 500
    assert problem.is_redacted
    assert not catch(400, b"no order [email]", content_type="text/plain").is_redacted
    deep = b"[" * 900 + b"]" * 900
    assert catch(400, deep, content_type="application/json").details == {"status": 400}


def test_a_result_has_no_credentials_of_the_service_even_if_an_old_contract_names_them() -> None:
    tool = make_tool(response_headers=("ETag", "Set-Cookie", "WWW-Authenticate", "authorization"))
    headers = {"etag": "1", "set-cookie": "session=s3cret", "www-authenticate": "Basic", "authorization": "Bearer x"}
    answer = HttpAnswer(status=204, headers=headers, body=b"")
    assert build_result(tool, answer, {}, NOW, had_credential=True) == {"status": 204, "headers": {"etag": "1"}}
