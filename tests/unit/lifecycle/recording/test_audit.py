"""What the entries of a call say of its scopes and of how it was degraded."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.call import CallRequest
from deputize.core.caller import Caller, Epochs
from deputize.core.canonical import canonicalize, compute_commitment
from deputize.core.clock import Deadline
from deputize.core.decision import Decision
from deputize.core.degradation import DEGRADATION_MEANINGS, Degradation
from deputize.core.hooks import HookEffects
from deputize.core.sensitive.marks import REDACTION_MARK
from deputize.core.states import State
from deputize.evidence.tracing import CallTrace
from deputize.lifecycle.phases import Authorized, CallContext, Claim, Executed, Validated, Verified
from deputize.lifecycle.recording.audit import _list_degradations, build_read_entry, digest_result, digest_scopes
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("GOV-5")

SALT = b"0123456789abcdef"
CALL_ID = "0198c0de-0000-7000-8000-000000000001"


def _make_verified(arguments: dict[str, Any], **contract: Any) -> Verified:
    tool = CompiledTool(make_contract(**contract))
    call = CallContext(
        call_id=CALL_ID, caller=Caller(tenant="acme", user="ana", pseudonyms=("ab",)),
        request=CallRequest(tool=tool.name, arguments=arguments), session=None, started_at=0.0, deadline=None,
        trail=CallTrace(trace_id="0" * 32),
    )  # fmt: skip
    validated = Validated(
        call=call, tool=tool, deadline=Deadline(at=1.0), canonical=canonicalize(arguments), call_input=arguments
    )
    side_effects = tool.resolve_writes(arguments)
    decision = Decision(rules=("r",), epochs=Epochs())
    executed = Executed(
        authorized=Authorized(validated=validated, decision=decision, side_effects=side_effects),
        claim=None, output=None, problem=None, attempts=2, seconds=0.0015,
    )  # fmt: skip
    payload = {"plan": "pro"}
    return Verified(executed=executed, problem=None, payload=payload, canonical=canonicalize({"result": payload}))


def _make_scoped(properties: dict[str, Any]) -> Verified:
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    resources = (
        {"resource": "user", "op": "update", "scope": "users/{id}/{email}"},
        {"resource": "log", "op": "create"},
    )
    arguments = {"id": 7, "email": "a b@x.example"}
    return _make_verified(arguments, effects="write", input_schema=schema, resources=resources)


def test_the_scopes_of_a_call_can_be_confirmed_with_the_salt() -> None:
    verified = _make_scoped({"id": {"type": "integer"}, "email": {"type": "string", "x-sensitivity": "internal"}})
    scopes = "\n".join(each[2] for each in verified.executed.authorized.side_effects)
    assert scopes.startswith("users/7/a b@x.example")
    assert scopes.endswith("\n*")
    assert digest_scopes(verified.executed.authorized, SALT) == compute_commitment(SALT, scopes.encode())


def test_a_sensitive_argument_is_redacted_before_its_scope_is_committed_to() -> None:
    authorized = _make_scoped(
        {"id": {"type": "integer"}, "email": {"type": "string", "x-sensitivity": "pii"}}
    ).executed.authorized
    redacted_scopes = authorized.validated.tool.resolve_writes({"id": 7, "email": REDACTION_MARK})
    expected = "\n".join(each.scope for each in redacted_scopes)
    assert "x.example" not in expected
    assert digest_scopes(authorized, SALT) == compute_commitment(SALT, expected.encode())


def test_a_tool_without_scopes_from_arguments_commits_to_none() -> None:
    assert digest_scopes(_make_verified({"id": 7}).executed.authorized, SALT) is None


def test_every_degradation_is_marked_and_described() -> None:
    verified = _make_verified({"id": 7})
    assert _list_degradations(verified) == ()
    executed = verified.executed
    marks_before = (Degradation.LIMITS_NOT_COUNTED, Degradation.FALLBACK)
    validated = replace(executed.validated, degradations=marks_before)
    executed = replace(executed, authorized=replace(executed.authorized, validated=validated), is_late=True)
    degraded = replace(verified, executed=executed, hook_effects=HookEffects(has_failure=True), is_rolled_back=True)
    claim = Claim(call_id=CALL_ID, epoch=2)
    marks = {
        *_list_degradations(degraded, claim), *_list_degradations(replace(degraded, is_rolled_back=False), claim)
    }  # fmt: skip
    assert marks == set(Degradation) - {Degradation.NOT_STOPPED}
    assert DEGRADATION_MEANINGS.keys() == set(Degradation)


def test_a_read_says_how_it_was_executed_and_no_value_of_its_result() -> None:
    verified = _make_verified({"id": 7}, observability={"cost_per_call": 0.25})
    row = build_read_entry(verified, State.SUCCEEDED, "2026-01-01T00:00:00.000Z", digest_result(verified, SALT))
    entry = orjson.loads(row.entry)
    assert (entry["attempts"], entry["latency_us"], entry["cost_micros"]) == (2, 1500, 250_000)
    assert entry["summary"] == {"bytes": len(b'{"plan":"pro"}'), "items": 1, "type": "object"}
    assert b"pro" not in row.entry
