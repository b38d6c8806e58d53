"""However a call is refused, it ends in one envelope with the right state, and says nothing it should not."""

import asyncio

import pytest

from deputize.core.caller import Caller
from deputize.core.contract.contract import LifecycleState
from deputize.core.outcome import Outcome
from deputize.core.states import TERMINAL_STATES, State
from tests.support.gateway_lab import GatewayLab, error_slug, parse_body
from tests.support.scripted_tools import TOOLS, list_effects

pytestmark = pytest.mark.requirement("INV-2")


async def _require_refusal(lab: GatewayLab, outcome: Outcome, state: State, expected_slug: str) -> None:
    assert (outcome.state, error_slug(outcome)) == (state, expected_slug)
    assert state in TERMINAL_STATES
    envelope = parse_body(outcome)
    assert envelope["is_error"] is True
    assert (envelope["call_id"], envelope["state"]) == (outcome.call_id, state)
    assert envelope["error"]["advice"]
    [entry] = await lab.fetch_entries(outcome.call_id)
    assert (entry["kind"], entry["outcome"]) == ("refusal", state)
    assert entry["error"] == envelope["error"]["number"]


async def test_an_unknown_tool_blocks_the_call(lab: GatewayLab) -> None:
    await _require_refusal(lab, await lab.call("nobody"), State.BLOCKED, "tool-not-found")


async def test_arguments_that_do_not_fit_fail_validation(lab: GatewayLab) -> None:
    await _require_refusal(lab, await lab.call("look", {"tag": 3}), State.VALIDATION_FAILED, "schema-violation")


async def test_a_missing_scope_is_a_denial(lab: GatewayLab) -> None:
    by = await lab.make_caller(scopes=())
    await _require_refusal(lab, await lab.call("note", "no-scope", by=by), State.DENIED, "scope-missing")
    assert not list_effects("no-scope")


async def test_a_version_outside_the_tokens_range_is_a_denial(lab: GatewayLab) -> None:
    by = await lab.make_caller(tools={"lab.note": "^7"})
    await _require_refusal(lab, await lab.call("note", "no-range", by=by), State.DENIED, "not-in-capability")


async def test_a_version_that_does_not_exist_blocks_the_call(lab: GatewayLab) -> None:
    await _require_refusal(lab, await lab.call("look", "v", version="^7"), State.BLOCKED, "version-not-found")


async def test_a_deadline_that_has_passed_starts_nothing(lab: GatewayLab) -> None:
    await _require_refusal(
        lab, await lab.call("note", "past-deadline", deadline_ms=0), State.TIMED_OUT, "deadline-exceeded"
    )
    await _require_refusal(
        lab, await lab.call("look", "past-deadline", deadline_ms=0), State.TIMED_OUT, "deadline-exceeded"
    )
    assert not list_effects("past-deadline")


async def test_what_cannot_be_taken_back_is_refused_without_a_key(lab: GatewayLab) -> None:
    await _require_refusal(lab, await lab.call("erase", "keyless"), State.FAILED, "key-required")
    assert not list_effects("keyless")


@pytest.mark.requirement("CON-10")
@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (LifecycleState.RETIRED, "tool-retired"),
        (LifecycleState.DISABLED, "tool-disabled"),
        (LifecycleState.REQUIRES_SETUP, "requires-setup"),
        (LifecycleState.DRAFT, "version-not-found"),
    ],
)
async def test_a_version_that_may_not_be_called_in_its_state_blocks_the_call(
    lab: GatewayLab, state: LifecycleState, expected: str
) -> None:
    look = TOOLS[0].contract
    version = f"0.2.{list(LifecycleState).index(state)}"
    await lab.gateway.commands.register_tool(
        await lab.make_admin(), look.model_copy(update={"version": version}), state=state
    )
    await _require_refusal(lab, await lab.call("look", "state", version=version), State.BLOCKED, expected)
    assert (await lab.call("look", "state", version="0.1.0")).state is State.SUCCEEDED


async def test_a_registered_tool_without_its_function_needs_setting_up_and_takes_no_key(lab: GatewayLab) -> None:
    note = TOOLS[5].contract
    elsewhere = note.model_copy(
        update={"name": "elsewhere", "handler": {"driver": "python", "target": "nowhere:nothing"}}
    )
    await lab.gateway.commands.register_tool(await lab.make_admin(), elsewhere)
    await _require_refusal(lab, await lab.call("elsewhere", "x", key="elsewhere-1"), State.BLOCKED, "requires-setup")
    assert not await lab.db.fetchval("select count(*) from deputize.calls where tool = 'lab.elsewhere'")


def _strip_identity(outcome: Outcome, tool_name: str) -> bytes:
    seen = parse_body(outcome)
    text = outcome.body
    for personal in (outcome.call_id, seen["trace_id"], tool_name):
        text = text.replace(personal.encode(), b"*")
    return text


@pytest.mark.requirement("GOV-1")
async def test_a_hidden_tool_and_one_that_does_not_exist_answer_alike(lab: GatewayLab) -> None:
    by: Caller = await lab.make_caller(tools={"lab.look": "*"})
    # Names of one length that look like nothing else, so that suggestions cannot differ by their likeness.
    hidden, unknown = await lab.call("erase", "h", by=by), await lab.call("ehhhh", "h", by=by)
    assert _strip_identity(hidden, "lab.erase") == _strip_identity(unknown, "lab.ehhhh")
    assert b"erase" not in unknown.body
    for same in ("version", "arguments"):
        more = {"version": "^9"} if same == "version" else {}
        arguments = {"nonsense": 1} if same == "arguments" else {"tag": "h"}
        pair = [
            _strip_identity(await lab.call(name, dict(arguments), by=by, **more), f"lab.{name}")
            for name in ("erase", "ehhhh")
        ]
        assert pair[0] == pair[1]
    told = [(await lab.fetch_entries(each.call_id))[0] for each in (hidden, unknown)]
    assert told[0].keys() == told[1].keys()


@pytest.mark.requirement("GOV-1")
async def test_suggestions_come_from_what_the_caller_sees(lab: GatewayLab) -> None:
    by = await lab.make_caller(tools={"lab.look": "*"})
    assert parse_body(await lab.call("brief_lok", "s", by=by))["error"]["details"]["did_you_mean"] in ([], ["lab.look"])
    assert "lab.brief_look" in parse_body(await lab.call("brief_lok", "s"))["error"]["details"]["did_you_mean"]


@pytest.mark.requirement("GOV-1")
async def test_who_was_revoked_learns_nothing_of_what_there_is(lab: GatewayLab) -> None:
    by = await lab.make_caller("gone")
    await lab.gateway.commands.revoke(await lab.make_admin(), "subject", "gone")
    for name, arguments in (("nobody", {"tag": "r"}), ("look", {"nonsense": 1}), ("crawl", {"tag": "r"})):
        await _require_refusal(lab, await lab.call(name, dict(arguments), by=by), State.DENIED, "revoked")


async def test_many_refusals_at_once_each_get_their_own_envelope(lab: GatewayLab) -> None:
    outcomes = await asyncio.gather(*[lab.call("nobody", f"{n}") for n in range(20)])
    assert len({outcome.call_id for outcome in outcomes}) == 20
