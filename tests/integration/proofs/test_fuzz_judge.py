"""The judge of the fuzz proof finds one planted fault of each category, in that category and in no other."""

from collections import Counter
from contextlib import AbstractAsyncContextManager
from functools import cache
from typing import Any

import orjson
import pytest

from deputize.interfaces.asgi import build_api
from deputize.interfaces.console.csrf import SECURITY_HEADERS
from deputize.operations.gateway import Gateway
from proofs.fuzz.console_fuzzer import PageFuzzer
from proofs.fuzz.experiment import Neighbour, SchemathesisResult, build_verdict, count_log_faults, read_report
from proofs.fuzz.rpc_fuzzer import RpcAnswerChecker
from proofs.fuzz.run_fuzzer import RunAnswerChecker
from proofs.fuzz.runner import Case, FuzzResult
from proofs.kit.http_client import HttpResponse
from proofs.kit.sign_in_issuer import Browser
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly

DONE = FuzzResult(cases=2000)
CHECKED = SchemathesisResult(cases=1000, wrong=Counter(), errors=0)
NEIGHBOUR = Neighbour(calls=1000)


def judge(**changes: Any) -> set[str]:
    """Judge the results of all fuzzers, of which these are changed."""
    facts: dict[str, Any] = {
        "rpc": DONE, "mcp": DONE, "runs": DONE, "pages": DONE, "schemathesis": CHECKED, "neighbour": NEIGHBOUR,
        "log_faults": 0, **changes,
    }  # fmt: skip
    results = (facts["rpc"], facts["mcp"], facts["runs"], facts["pages"], facts["schemathesis"])
    return list_missed_bars("fuzz", build_verdict(results, facts["neighbour"], facts["log_faults"], {}).figures)


def find_wrong(what: str) -> FuzzResult:
    return FuzzResult(cases=2000, wrong=Counter({what: 1}))


CASES: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    *(({fuzzer: find_wrong("server error")}, {"server_errors"}) for fuzzer in ("rpc", "mcp", "runs", "pages")),
    *(({fuzzer: find_wrong("internal")}, {"internal"}) for fuzzer in ("rpc", "mcp", "runs")),
    *(({fuzzer: find_wrong("no answer")}, {"violations"}) for fuzzer in ("rpc", "mcp", "runs", "pages")),
    ({"log_faults": 1}, {"internal"}),
    ({"schemathesis": SchemathesisResult(cases=1, wrong=Counter({"server error": 1}), errors=0)}, {"server_errors"}),
    ({"schemathesis": SchemathesisResult(cases=1, wrong=Counter({"undefined status": 1}), errors=0)}, {"violations"}),
    ({"schemathesis": SchemathesisResult(cases=1, wrong=Counter(), errors=1)}, {"violations"}),
    ({"runs": FuzzResult(cases=2000, never_done=["POST /v1/x"])}, {"routes_never_done"}),
    ({"pages": FuzzResult(cases=2000, never_done=["GET /console"])}, {"routes_never_done"}),
    ({"neighbour": Neighbour(calls=1000, failure_count=1)}, {"neighbour_hurt"}),
    ({"neighbour": Neighbour(calls=999)}, {"neighbour_calls"}),
    ({"rpc": FuzzResult(), "mcp": FuzzResult(), "runs": FuzzResult()}, {"cases"}),
]


@pytest.mark.parametrize(("changes", "missed"), CASES)
def test_a_fault_is_found_in_its_category(changes: dict[str, Any], missed: set[str]) -> None:
    assert judge(**changes) == missed


def test_every_exact_bar_has_a_planted_fault() -> None:
    figures = build_verdict((DONE, DONE, DONE, DONE, CHECKED), NEIGHBOUR, 0, {}).figures
    assert list_exact_bars("fuzz", among=figures) <= set().union(*(missed for _, missed in CASES))


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("2026-11-16 [info     ] served", 0),
        ("2026-11-16 [error    ] call_failed trace=1", 1),
        ("2026-11-16 [error    ] database_lost", 0),
    ],
)
def test_a_fault_that_was_hidden_from_callers_is_found_in_the_log(line: str, count: int) -> None:
    assert count_log_faults(f"{line}\n") == count


@pytest.mark.parametrize(
    ("answer", "failures"),
    [
        (HttpResponse(status=200, headers={}, body=b'{"result": {"text": "mine"}}'), 0),
        (HttpResponse(status=200, headers={}, body=b'{"result": {"text": "another"}}'), 1),
        (HttpResponse(status=503, headers={}, body=b"{}"), 1),
        (ConnectionResetError(), 1),
    ],
)
def test_a_neighbour_gets_its_own_answers(answer: HttpResponse | Exception, failures: int) -> None:
    neighbour = Neighbour()
    neighbour.record_answer("mine", answer, 1.0)
    assert (neighbour.calls, neighbour.failure_count, len(neighbour.samples)) == (1, failures, failures)


def test_a_report_of_schemathesis_is_read_by_kind() -> None:
    failures = [{"type": "ServerError", "count": 2}, {"type": "UndefinedStatusCode", "count": 1}]
    result = read_report({"failures": failures, "test_cases": {"generated": 10, "errored": 3}})
    assert (result.cases, result.errors) == (7, 3)
    assert result.wrong == {"server error": 2, "UndefinedStatusCode": 1}


def never_open() -> AbstractAsyncContextManager[Gateway]:
    raise RuntimeError("this composition is only looked at")


@cache
def load_document() -> dict[str, Any]:
    return build_api(never_open).rest.openapi()


INTERNAL = {"slug": "internal"}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools.list"}
PAGE = {"jsonrpc": "2.0", "id": 1, "result": {"tools": [], "next_after": None}}


@pytest.mark.parametrize(
    ("path", "request_body", "status", "body", "fault"),
    [
        ("/rpc", LIST, 200, PAGE, None),
        ("/rpc", [LIST, LIST], 200, [PAGE, PAGE], None),
        ("/rpc", LIST, 500, {}, "server error"),
        ("/rpc", LIST, 418, {}, "undocumented status 418"),
        ("/rpc", LIST, 200, "no JSON", "an answer that is not JSON"),
        ("/rpc", LIST, 204, {}, "a body where none belongs"),
        ("/rpc", LIST, 200, {"id": 1}, "not a JSON-RPC reply"),
        ("/rpc", LIST, 200, {"jsonrpc": "2.0", "id": 1}, "not exactly one of result and error"),
        ("/rpc", LIST, 200, {**PAGE, "error": {}}, "not exactly one of result and error"),
        ("/rpc", LIST, 200, {"jsonrpc": "2.0", "id": 1, "error": {"code": "x"}}, "an error without code or message"),
        ("/rpc", LIST, 200, {**PAGE, "id": 2}, "a result for another request"),
        ("/rpc", LIST, 200, {**PAGE, "result": {"tools": 1}}, "not a ToolPage"),
        ("/rpc", LIST, 200, [PAGE], "a batch in answer to none"),
        ("/rpc", [LIST, LIST], 200, [PAGE], "not one reply per request"),
        ("/rpc", [LIST, LIST], 200, [PAGE, {**PAGE, "id": 2}], "a result for another request"),
        (
            "/rpc",
            LIST,
            200,
            {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "m", "data": {"error": INTERNAL}}},
            "internal",
        ),
        ("/v1/calls", None, 200, {}, "not a EnvelopeModel"),
        ("/v1/calls", None, 400, {}, "not a ProblemModel"),
        ("/v1/calls", None, 400, {"error": INTERNAL}, "internal"),
    ],
)
def test_a_wrong_answer_to_a_call_is_named(
    path: str, request_body: Any, status: int, body: Any, fault: str | None
) -> None:
    content = body.encode() if isinstance(body, str) else orjson.dumps(body)
    answer = HttpResponse(status=status, headers={}, body=content)
    checker = RpcAnswerChecker(load_document())
    assert checker.find_fault(Case(path=path, request=request_body), answer) == fault


@pytest.mark.parametrize(
    ("status", "media", "body", "fault"),
    [
        (500, "application/json", b"{}", "server error"),
        (418, "application/json", b"{}", "undocumented status 418"),
        (202, "text/plain", b"{}", "undocumented media text/plain"),
        (202, "application/json", b"{", "an answer that is not JSON"),
        (202, "application/json", b"[]", "not a CancellationResult"),
        (404, "application/problem+json", b'{"error": {"slug": "internal"}}', "internal"),
    ],
)
def test_a_wrong_answer_about_a_run_is_named(status: int, media: str, body: bytes, fault: str) -> None:
    checker = RunAnswerChecker(load_document())
    route = next(each for each in checker.routes if each.name == "POST /v1/calls/{call_id}/cancel")
    answer = HttpResponse(status=status, headers={"content-type": media}, body=body)
    assert checker.find_fault(Case(path=route.path, request=route), answer) == fault


HTML = {**SECURITY_HEADERS, "content-type": "text/html; charset=utf-8"}


@pytest.mark.parametrize(
    ("status", "headers", "body", "fault"),
    [
        (200, HTML, b"<p>good</p>", None),
        (500, HTML, b"", "server error"),
        (200, {"content-type": "text/html"}, b"<p>good</p>", "a page without its headers"),
        (200, {**HTML, "content-type": "application/json"}, b"{}", "a page of application/json"),
        (200, HTML, b"\xff", "a page that is not UTF-8"),
        (200, HTML, b"<script>1</script>", "a page that runs what somebody wrote"),
        (303, {**HTML, "location": "/console/approvals"}, b"", None),
        (303, {**HTML, "location": "//elsewhere.example/console"}, b"", "a way to elsewhere"),
        (303, {**HTML, "location": "https://issuer.example/auth?x=1"}, b"", None),
        (303, {**HTML, "location": "https://issuer.example.evil/auth?x=1"}, b"", "a way to elsewhere"),
    ],
)
def test_a_wrong_page_is_named(status: int, headers: dict[str, str], body: bytes, fault: str | None) -> None:
    browser = Browser(session="s", login_cookie="l", callback_path="/console/callback")
    fuzzer = PageFuzzer("http://gateway", "https://issuer.example", browser, {}, "f")
    answer = HttpResponse(status=status, headers=headers, body=body)
    assert fuzzer.find_fault(Case(path="/console", request="GET /console"), answer) == fault
