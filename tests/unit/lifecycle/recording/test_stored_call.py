"""What is written down of a caller is all there is to decide by when the run goes on."""

from dataclasses import fields, replace

import orjson
import pytest

from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.call import CallRequest
from deputize.core.caller import Caller, Capability, compute_decision_cache_key
from deputize.core.clock import Deadline
from deputize.core.contract.contract import Effects
from deputize.core.errors import TokenIssuerUntrusted
from deputize.core.mcp.elicitation import ClientCapability, InputRound
from deputize.core.settings import IssuerSettings
from deputize.evidence.tracing import CallTrace
from deputize.lifecycle.phases import CallContext, Validated
from deputize.lifecycle.recording.stored_call import StoredInput, restore_caller, serialize_caller, serialize_input
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("NEW-3")

TRUSTED_CALLER = IssuerSettings(
    issuer="https://login.example",
    audience="deputize",
    jwks_url="https://login.example/keys",
    trust="trusted",
    tenant="acme",
)
DELEGATED_CALLER = Caller(
    tenant="acme", user="ana", agents=("bot", "helper"), agent_issuers=("https://login.example", ""),
    primary_issuer="https://login.example",
    scopes=frozenset({"a", "b"}), session="s", token_id="t",
    capabilities=(Capability(tool="shop.buy", versions=">=1"),), issuer="https://login.example", expires_at=2,
    issued_at=1, groups=frozenset({"g"}), trust="trusted", human=True, auth_time=3, grants=("g2", "g1"),
    first_token="origin", task="shopping", ceiling=Effects.WRITE, pseudonyms=("p", "q", "r"),
    constraints=('{"environments":["staging"]}',),
)  # fmt: skip


def test_a_caller_is_read_back_whole() -> None:
    plain = Caller(tenant="acme", user="ana")
    unset = {each.name for each in fields(Caller) if getattr(DELEGATED_CALLER, each.name) == getattr(plain, each.name)}
    # Whoever adds a fact to callers gives it a value above, and so finds out whether it is written down.
    # Who decides is there in person: nothing that lets somebody decide is written down.
    assert unset == {
        "tenant",
        "user",
        "decision_cache_key",
        "console",
        "only_decides",
        "methods",
        "operator",
        "confirmation_code",
    }
    again = restore_caller(serialize_caller(DELEGATED_CALLER), [TRUSTED_CALLER])
    for each in fields(Caller):
        if each.name != "decision_cache_key":
            assert getattr(again, each.name) == getattr(DELEGATED_CALLER, each.name), each.name
    assert again.decision_cache_key == compute_decision_cache_key(DELEGATED_CALLER)


def test_what_an_earlier_release_wrote_down_is_still_read() -> None:
    told = orjson.loads(serialize_caller(DELEGATED_CALLER))
    del told["first_token"]
    assert restore_caller(orjson.dumps(told), [TRUSTED_CALLER]).first_token == ""


def test_a_caller_without_proven_agents_is_still_read_by_an_earlier_release() -> None:
    unconstrained = replace(DELEGATED_CALLER, constraints=())
    stored = orjson.loads(serialize_caller(replace(unconstrained, agent_issuers=("", ""))))
    assert (stored["v"], "agent_issuers" in stored, "constraints" in stored) == (1, False, False)
    # One that would read a chosen name as proven, or not enforce its constraints, leaves it to others.
    assert orjson.loads(serialize_caller(unconstrained))["v"] == 4
    assert orjson.loads(serialize_caller(replace(DELEGATED_CALLER, agent_issuers=())))["v"] == 3


def test_who_is_trusted_less_since_or_not_at_all_is_not_what_was_written_down() -> None:
    less = TRUSTED_CALLER.model_copy(update={"trust": "untrusted"})
    again = restore_caller(serialize_caller(DELEGATED_CALLER), [less])
    assert (again.trust, again.decision_cache_key) == (
        "untrusted",
        compute_decision_cache_key(replace(DELEGATED_CALLER, trust="untrusted")),
    )
    for issuers in ([], [TRUSTED_CALLER.model_copy(update={"tenant": "another"})]):
        with pytest.raises(TokenIssuerUntrusted):
            restore_caller(serialize_caller(DELEGATED_CALLER), issuers)


def _make_validated(input_round: InputRound | None) -> Validated:
    request = CallRequest(tool="orders.cancel", arguments={"a": 1}, client_capabilities=frozenset(ClientCapability))
    call = CallContext(
        call_id="c",
        caller=DELEGATED_CALLER,
        request=request,
        session=None,
        started_at=0.0,
        deadline=None,
        trail=CallTrace(trace_id="t"),
    )
    tool = CompiledTool(make_contract())
    return Validated(
        call=call, tool=tool, deadline=Deadline(at=1.0), canonical=b"{}", call_input=request.arguments,
        input_round=input_round,
    )  # fmt: skip


def test_answers_are_written_down_with_the_call_that_gives_them_and_read_back_whole() -> None:
    told = InputRound(continued_call_id="first", request_state="theirs", responses={"who": {"action": "decline"}})
    read = StoredInput(serialize_input(_make_validated(told)))
    assert read.input_round == told
    assert read.client_capabilities == frozenset(ClientCapability)
    assert read.build_request("orders.cancel", "1.0.0", None).client_capabilities == frozenset(ClientCapability)


def test_a_release_that_knows_nothing_of_answers_leaves_such_a_call_to_others_and_takes_all_the_rest() -> None:
    told = InputRound(continued_call_id="first", request_state=None, responses={})
    assert orjson.loads(serialize_input(_make_validated(told)))["v"] == 2
    plain = orjson.loads(serialize_input(_make_validated(None)))
    assert plain["v"] == 1
    for name in ("input_round", "client_capabilities"):
        del plain[name]
    earlier = StoredInput(orjson.dumps(plain))
    assert (earlier.input_round, earlier.client_capabilities) == (None, frozenset())
