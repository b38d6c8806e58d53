"""The judge of the confused deputy finds one planted fault of each category, in that category and in no other."""

from collections import Counter
from dataclasses import replace
from typing import Any

import orjson
import pytest

from deputize.core.errors import CallNotFound, NotAnApprover, PermissionDenied, TokenExpired
from proofs.confused_deputy.approval_attempts import AttemptResult, WrongDecider, check_attempt, check_batch_attempt
from proofs.confused_deputy.bad_tokens import BadToken
from proofs.confused_deputy.delegated_calls import (
    DelegatedCall,
    DelegatedToken,
    DelegationFindings,
    check_entries,
    check_foreign_answer,
    check_states,
    judge_credentials,
)
from proofs.confused_deputy.endpoints import EndpointCatalog, TokenEndpoint, TryResult, record_answer
from proofs.confused_deputy.experiment import build_verdict
from proofs.confused_deputy.secret_search import SearchResult
from proofs.kit.http_client import HttpResponse
from proofs.kit.secret_patterns import SecretMatch
from tests.support.proof_bars import list_missed_bars

pytestmark = pytest.mark.nightly

URL = "http://gateway"
SECRETS = {"acme": "secret-a", "beside": "secret-b"}
ANA = DelegatedToken(tenant="acme", user="ana", agent="bot", token="t1")
BO = DelegatedToken(tenant="acme", user="bo", agent="bot", token="t2")


def make_call(call_id: str, delegation: DelegatedToken = ANA, **changes: Any) -> DelegatedCall:
    identity = (delegation.user, delegation.agent)
    call = DelegatedCall(
        delegation=delegation, tool="whoami_upstream", id=call_id, status=200, reported_identity=identity
    )
    return replace(call, **changes)


def make_credential(call_id: str, **who: Any) -> dict[str, Any]:
    identity = {"sub": "ana", "act": {"sub": "bot"}, "iss": f"{URL}/t/acme", "jti": f"j-{call_id}", "iat": 0, "exp": 60}
    return {"call": call_id, "shown": {"authorization": f"Bearer {call_id}"}, "who": {**identity, **who}}


def make_key(call_id: str, secret: str) -> dict[str, Any]:
    return {"call": call_id, "shown": {"x-api-key": secret}, "who": {}}


KEYED = make_call("k", tool="keyed", reported_identity=None)


@pytest.mark.parametrize(
    ("calls", "credentials", "mismatches"),
    [
        ([make_call("c")], [make_credential("c")], set()),
        ([make_call("c", status=503)], [], {"not answered"}),
        ([make_call("c")], [], {"not exactly one request upstream"}),
        ([make_call("c")], [make_credential("c"), make_credential("c")], {"not exactly one request upstream"}),
        ([make_call("c")], [make_credential("c", sub="bo")], {"another's credential"}),
        ([make_call("c")], [make_credential("c", act={"sub": "other"})], {"another's credential"}),
        ([make_call("c")], [make_credential("c", act=None)], {"another's credential"}),
        ([make_call("c", reported_identity=("bo", "bot"))], [make_credential("c")], {"another's answer"}),
        ([make_call("c")], [make_credential("c", iss=f"{URL}/t/beside")], {"another tenant's issuer"}),
        (
            [make_call("c"), make_call("d")],
            [make_credential("c", jti="j"), make_credential("d", jti="j")],
            {"one credential for several calls"},
        ),
        ([KEYED], [make_key("k", SECRETS["acme"])], set()),
        ([KEYED], [make_key("k", SECRETS["beside"])], {"another tenant's secret"}),
        ([KEYED], [make_credential("k")], {"another tenant's secret"}),
    ],
)
def test_a_credential_is_that_of_the_caller(
    calls: list[DelegatedCall], credentials: list[dict[str, Any]], mismatches: set[str]
) -> None:
    findings = judge_credentials(calls, credentials, secrets=SECRETS, url=URL)
    assert findings.mismatch_counts.keys() == mismatches
    assert findings.call_count == len(calls)


@pytest.mark.parametrize(
    ("entries", "mismatches"),
    [
        ({"c": ["p-ana", "p-bot"], "d": ["p-bo", "p-bot"], "e": ["p-ana", "p-bot"]}, set()),
        ({"c": ["p-ana", "p-bot"], "d": ["p-bo", "p-bot"], "e": ["p-bo", "p-bot"]}, {"another's entry"}),
        (
            {"c": ["p-ana", "p-bot"], "d": ["p-ana", "p-bot"], "e": ["p-ana", "p-bot"]},
            {"two subjects under one name"},
        ),
        ({"c": ["p-ana", "p-bot"], "d": ["p-bo", "p-bot"], "e": ["p-ana"]}, {"no entry with both names"}),
        ({"c": ["p-ana", "p-bot"], "d": ["p-bo", "p-bot"]}, {"no entry with both names"}),
    ],
)
def test_an_entry_names_who_called(entries: dict[str, list[str]], mismatches: set[str]) -> None:
    findings = DelegationFindings()
    calls = [make_call("c"), make_call("d", BO), make_call("e")]
    check_entries(findings, calls, {call: {"caller": names} for call, names in entries.items()})
    assert findings.mismatch_counts.keys() == mismatches


def make_problem(status: int, slug: str, **details: str) -> HttpResponse:
    body = orjson.dumps({"error": {"slug": slug, "details": details}})
    return HttpResponse(status=status, headers={"content-type": "application/problem+json"}, body=body)


DONE = HttpResponse(status=200, headers={"content-type": "application/json"}, body=b'{"state": "succeeded"}')


@pytest.mark.parametrize(
    ("answer", "after", "mismatches"),
    [
        (make_problem(404, CallNotFound.spec.slug), {"c": ("queued",)}, set()),
        (DONE, {"c": ("queued",)}, {"another's call was shown"}),
        (make_problem(403, PermissionDenied.spec.slug), {"c": ("queued",)}, {"another's call was shown"}),
        (make_problem(404, CallNotFound.spec.slug), {"c": ("canceled",)}, {"another's call was changed"}),
        (make_problem(404, CallNotFound.spec.slug), {}, {"another's call was changed"}),
    ],
)
def test_a_call_is_not_there_for_others(
    answer: HttpResponse, after: dict[str, tuple[str, ...]], mismatches: set[str]
) -> None:
    findings = DelegationFindings()
    check_foreign_answer(findings, "c", "bo bot at GET", answer)
    check_states(findings, {"c": ("queued",)}, after)
    assert findings.mismatch_counts.keys() == mismatches


DECIDER = WrongDecider(label="an agent", token="t", expected_refusal="humans-only")
RIGHT_REFUSAL = make_problem(403, NotAnApprover.spec.slug, rule="humans-only")
OTHER_REFUSAL = make_problem(403, NotAnApprover.spec.slug, rule="approver-group")


@pytest.mark.parametrize(
    ("action", "answer", "accepted", "wrong_reasons"),
    [
        ("approve", RIGHT_REFUSAL, 0, 0),
        ("approve", DONE, 1, 0),
        ("deny", OTHER_REFUSAL, 0, 1),
        ("break-glass", OTHER_REFUSAL, 0, 0),
        ("break-glass", DONE, 1, 0),
    ],
)
def test_a_wrong_decider_is_refused_by_the_right_rule(
    action: str, answer: HttpResponse, accepted: int, wrong_reasons: int
) -> None:
    result = AttemptResult()
    check_attempt(result, DECIDER, action, answer)
    assert (result.try_count, result.accepted_count, result.wrong_reason_count) == (1, accepted, wrong_reasons)


@pytest.mark.parametrize(
    ("decisions", "accepted"),
    [([{"refusal_slug": "x"}], 0), ([{"refusal_slug": "x"}, {"state": "approved"}], 1), (None, 0)],
)
def test_a_batch_is_refused_decision_by_decision(decisions: list[dict[str, Any]] | None, accepted: int) -> None:
    result = AttemptResult()
    body = orjson.dumps({"decisions": decisions})
    answer = RIGHT_REFUSAL if decisions is None else HttpResponse(status=200, headers={}, body=body)
    check_batch_attempt(result, DECIDER, "approve", answer)
    assert result.accepted_count == accepted


DOOR = TokenEndpoint(name="GET /v1/tools", method="GET", path="/v1/tools")
EXPIRED = BadToken(label="exp: past", token="t")
FOREIGN = BadToken(label="beside: good", token="t", is_foreign=True)
MARKED = HttpResponse(status=200, headers={"content-type": "application/json"}, body=b'{"tools": ["acme-mark"]}')


@pytest.mark.parametrize(
    ("bad", "answer", "accepted", "broken"),
    [
        (EXPIRED, make_problem(401, TokenExpired.spec.slug), 0, 0),
        (EXPIRED, make_problem(403, PermissionDenied.spec.slug), 1, 0),
        (EXPIRED, MARKED, 1, 0),
        (EXPIRED, make_problem(500, "internal"), 1, 0),
        (FOREIGN, DONE, 0, 0),
        (FOREIGN, MARKED, 1, 0),
        (FOREIGN, make_problem(500, "internal"), 0, 1),
    ],
)
def test_a_bad_token_is_refused_for_itself(bad: BadToken, answer: HttpResponse, accepted: int, broken: int) -> None:
    result = TryResult()
    record_answer(result, DOOR, bad, answer, ["acme-mark"])
    assert (result.try_count, result.accepted_count, result.broken_count) == (1, accepted, broken)


def test_a_route_without_a_caller_is_found_in_the_document_and_beside_it() -> None:
    document: dict[str, Any] = {"paths": {"/v1/unguarded": {"get": {}}, "/healthz": {"get": {}}}}
    bodies = {"rpc calls.get": {"call_id": "c"}, "rpc calls.create": {"tool": "t", "arguments": {}}}
    catalog = EndpointCatalog(document, {}, bodies, [])
    assert "GET /v1/unguarded" in catalog.unguarded_routes
    assert "POST /v1/calls, which no document lists" in catalog.unguarded_routes
    assert not any("/healthz" in each for each in catalog.unguarded_routes)


@pytest.mark.parametrize(
    ("matches", "found", "missed"),
    [
        ([SecretMatch(place="logs", what="planted", count=1)], 0, 0),
        ([], 0, 1),
        ([SecretMatch(place="spans", what="planted", count=1)], 0, 1),
        ([SecretMatch(place="logs", what=what, count=1) for what in ("planted", "a token")], 1, 0),
    ],
)
def test_what_was_planted_is_told_from_what_was_found(matches: list[SecretMatch], found: int, missed: int) -> None:
    result = SearchResult()
    result.add_matches(matches, {"planted": "logs"})
    assert (len(result.matches), len(result.missed_plants)) == (found, missed)


GOOD: dict[str, Any] = {
    "findings": DelegationFindings(pair_count=10_000),
    "try_result": TryResult(),
    "decision_result": AttemptResult(),
    "search_result": SearchResult(span_bytes=10_000),
    "endpoint_names": [f"GET /{number}" for number in range(15)],
    "unguarded_routes": [],
    "bad_tokens": [BadToken(label="x", token=str(number)) for number in range(300)],
    "failures": [],
    "controls": {},
}


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, set()),
        ({"findings": DelegationFindings(pair_count=9_999)}, {"pairs"}),
        ({"findings": DelegationFindings(pair_count=10_000, mismatch_counts=Counter(x=1))}, {"mismatches"}),
        ({"try_result": TryResult(accepted_count=1)}, {"accepted"}),
        ({"try_result": TryResult(effect_count=1)}, {"effects"}),
        ({"try_result": TryResult(broken_count=1)}, {"no_answer"}),
        ({"decision_result": AttemptResult(accepted_count=1)}, {"decided_wrongly"}),
        ({"decision_result": AttemptResult(wrong_reason_count=1)}, {"refused_for_another_reason"}),
        ({"search_result": SearchResult()}, {"span_bytes_searched"}),
        ({"search_result": SearchResult(span_bytes=10_000, missed_plants=["x"])}, {"planted_missed"}),
        (
            {"search_result": SearchResult(span_bytes=10_000, matches=[SecretMatch(place="p", what="w", count=1)])},
            {"secrets_found"},
        ),
        ({"endpoint_names": ["GET /"]}, {"endpoints"}),
        ({"unguarded_routes": ["GET /x"]}, {"unguarded_routes"}),
        ({"bad_tokens": [BadToken(label="x", token="same")] * 300}, {"bad_tokens"}),
        ({"failures": ["GET /x: 401"]}, {"endpoints_shut_to_good_tokens"}),
    ],
)
def test_every_category_of_findings_has_its_bar(changes: dict[str, Any], missed: set[str]) -> None:
    assert list_missed_bars("confused_deputy", build_verdict(**{**GOOD, **changes}).figures) == missed
