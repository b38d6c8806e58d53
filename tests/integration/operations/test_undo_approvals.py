"""People approve an undo of several steps once, and each step begins only as they saw it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from deputize.core.call import CallRequest
from deputize.core.caller import ADMIN_SCOPE, UNDO_SCOPE, Caller
from deputize.core.decision import ApprovalRequirement
from deputize.core.errors import MalformedRequest, NotAnApprover, ToolPrecondition
from deputize.core.hooks import HookCall, LoadedHook, Permission
from deputize.core.states import State
from deputize.govern.identity.dev_issuer import mint_dev_token
from deputize.lifecycle.approval.approval_request import ApprovalContents
from deputize.lifecycle.approval.planned_undos import decide_call, find_plan_approval
from deputize.operations.gateway import UndoSelection
from deputize.operations.undo import undo as undo_steps
from tests.support import notebook_tools
from tests.support.approval_lab import ApprovalLab, open_approval_lab
from tests.support.gateway_internals import get_lifecycle
from tests.support.gateway_lab import wait_until
from tests.support.notebook_tools import failures, guarded, notes
from tests.support.query_count import count_queries
from tests.support.scripted_tools import TOOLS

pytestmark = [pytest.mark.requirement("NEW-2"), pytest.mark.requirement("GOV-4")]

RULES = """
@id("open") permit (principal, action, resource)
unless { context has undoes && resource in [Tool::"book.remove", Tool::"book.change", Tool::"book.reopen"] };
@id("undos-ask") @decision("ask") permit (principal, action, resource)
when { context has undoes && resource in [Tool::"book.remove", Tool::"book.reopen"] };
@id("changes-ask-two") @decision("ask") @approvers("keepers") @quorum("2") @step_up("hwk")
permit (principal, action, resource == Tool::"book.change") when { context has undoes };
"""
CHANGED_RULES = RULES.replace('@id("undos-ask")', '@id("undos-ask") @reason("since noon")')


@pytest_asyncio.fixture
async def lab(fresh_database: str, tmp_path: Path) -> AsyncIterator[ApprovalLab]:
    notes.clear()
    failures.clear()
    guarded.clear()
    tools = [*TOOLS, *notebook_tools.TOOLS]
    async with open_approval_lab(fresh_database, tmp_path, rules=RULES, tools=tools) as lab:
        yield lab


async def make_person(lab: ApprovalLab, user: str = "eva", *scopes: str) -> Caller:
    return await lab.lab.make_caller(user, scopes=("book:write", UNDO_SCOPE, *scopes))


async def write(lab: ApprovalLab, tool: str, agent: str = "bot", user: str = "eva", **arguments: Any) -> str:
    """A call of an agent in the session that is undone."""
    caller = await lab.lab.make_caller(user, agent=agent, scopes=("book:write",))
    key = lab.lab.runtime.clock.new_id()
    request = CallRequest(tool=f"book.{tool}", arguments=arguments, idempotency_key=key, session="afternoon")
    outcome = await lab.lab.gateway.run_call(caller, request)
    assert outcome.state is State.SUCCEEDED, outcome.body
    return outcome.call_id


async def plan(lab: ApprovalLab, by: Caller) -> dict[str, Any]:
    return await lab.lab.gateway.undo.plan_undo(by, UndoSelection(session="afternoon"))


async def undo(lab: ApprovalLab, by: Caller | None = None, **selection: Any) -> dict[str, Any]:
    caller = by or await make_person(lab)
    named = UndoSelection(**selection or {"session": "afternoon"})
    planned = await lab.lab.gateway.undo.plan_undo(caller, named)
    return await lab.lab.gateway.undo.execute_undo(caller, named, planned["digest"])


async def make_sam(lab: ApprovalLab, name: str = "sam", **more: Any) -> Caller:
    more = {"groups": ("approvers", "keepers"), "methods": frozenset({"hwk"}), **more}
    return await lab.make_approver(name, **more)


async def approve(lab: ApprovalLab, answer: dict[str, Any], *names: str) -> str:
    """Approve what an undo waits for, and wait until the step that waited is made."""
    request_id = str(answer["approval"]["approval_id"])
    for name in names or ("sam",):
        told = await lab.approve(await make_sam(lab, name), request_id)
    assert told["state"] == "approved"
    await wait_until(lambda: has_ended(lab, answer["made"][-1]["call_id"]))
    return request_id


async def has_ended(lab: ApprovalLab, call_id: str) -> bool:
    return await lab.lab.fetch_state(call_id) not in ("awaiting_approval", "queued", "running")


def list_states(answer: dict[str, Any]) -> list[str]:
    return [each["state"] for each in answer["made"]]


async def count_requests(lab: ApprovalLab) -> int:
    return int(await lab.lab.db.fetchval("select count(*) from deputize.approvals"))


async def test_one_approval_is_for_all_steps_and_each_is_a_call_of_its_own(lab: ApprovalLab) -> None:
    for name in "abc":
        await write(lab, "add", name=name, text="t")
    await write(lab, "pin", name="c", text="p")
    await write(lab, "add", name="d", text="t")
    answer = await undo(lab)
    # What needs nobody is made in its turn; the first step that asks waits, with all that ask after it.
    assert (list_states(answer), answer["approval"]["steps"]) == (["awaiting_approval"], 4)
    shown = await lab.approvals.get_request(await make_sam(lab), answer["approval"]["approval_id"])
    assert [(each["tool"], each["decision"], each["arguments"]) for each in shown["undo_steps"]] == [
        ("book.remove", "ask", {"name": "d"}), ("book.unpin", "allow", {"name": "c"}),
        ("book.remove", "ask", {"name": "c"}), ("book.remove", "ask", {"name": "b"}),
        ("book.remove", "ask", {"name": "a"}),
    ]  # fmt: skip
    assert shown["undo_steps"][2]["source_agents"] == ["bot"]
    assert shown["undo_steps"][2]["origins"] == {"name": "result"}
    assert [each["id"] for each in shown["rules"]] == ["undos-ask"]
    # Also for who reads nothing but the arguments.
    assert list(shown["arguments"]) == ["1 book.remove", "3 book.remove", "4 book.remove", "5 book.remove"]
    # While it waits, no step is made, and who repeats the undo waits for the same.
    again = await undo(lab)
    assert (again["made"], again["approval"]["steps"]) == (answer["made"], 4)
    assert "pin c" in notes
    request_id = await approve(lab, answer)
    answer = await undo(lab)
    assert (list_states(answer), answer["approval"], notes) == (["succeeded"] * 4, None, {})
    assert await count_requests(lab) == 1
    for made in answer["made"]:
        entries = await lab.lab.fetch_entries(made["call_id"])
        assert [each["kind"] for each in entries] == ["intent", "outcome"]
        is_approved = [each.get("approval") == request_id for each in entries]
        assert is_approved == [made["tool"] == "book.remove"] * 2, entries


async def test_the_strictest_demands_of_all_steps_hold(lab: ApprovalLab) -> None:
    notes["x"] = "1"
    await write(lab, "change", name="x", text="2")
    await write(lab, "add", name="a", text="t")
    answer = await undo(lab)
    request_id = answer["approval"]["approval_id"]
    shown = await lab.approvals.get_request(await make_sam(lab), request_id)
    assert sorted((each["rule"], each["quorum"], each["step_up"]) for each in shown["demands"]) == [
        ("changes-ask-two", 2, "hwk"), ("undos-ask", 1, ""),
    ]  # fmt: skip
    with pytest.raises(NotAnApprover, match="sign-in method hwk"):
        await lab.approve(await make_sam(lab, "una", methods=frozenset()), request_id)
    assert (await lab.approve(await make_sam(lab, groups=("approvers",)), request_id))["state"] == "open"
    assert (await lab.approve(await make_sam(lab, "kim", groups=("keepers",)), request_id))["state"] == "open"
    await approve(lab, answer, "leo")
    assert (list_states(await undo(lab)), notes) == (["succeeded"], {"x": "1"})


async def test_neither_who_asks_nor_an_agent_whose_words_are_sent_decides(lab: ApprovalLab) -> None:
    await write(lab, "add", agent="sam", name="a", text="t")
    await write(lab, "add", name="b", text="t")
    request_id = (await undo(lab))["approval"]["approval_id"]
    for name, why in (("eva", "you took part"), ("Sam", "agent of your name")):
        approver = await make_sam(lab, name)
        with pytest.raises(NotAnApprover, match=why):
            await lab.approve(approver, request_id)
        assert not (await lab.approvals.get_request(approver, request_id))["may_decide"]
    assert (await lab.approvals.get_request(await make_sam(lab, "kim"), request_id))["may_decide"]


async def ask_for_three(lab: ApprovalLab) -> str:
    """Approve to take back what was done to three notes; the worker makes the first step."""
    for name in "abc":
        notes[name] = "t"
        await write(lab, "close", name=name)
    request_id = await approve(lab, await undo(lab))
    assert sorted(notes) == ["c", "closed a", "closed b"]
    return request_id


async def test_a_step_with_another_preview_asks_alone_and_the_others_go_on(lab: ApprovalLab) -> None:
    await ask_for_three(lab)
    notes["closed b"] = "other"
    answer = await undo(lab)
    # The one behind it was approved as it is.
    assert (list_states(answer), answer["approval"]["steps"]) == (["awaiting_approval"], 1)
    await approve(lab, answer)
    assert list_states(await undo(lab)) == ["succeeded"]
    assert notes == {"a": "t", "b": "other", "c": "t"}
    # Each met what its approvers saw.
    assert guarded == [{"text": "t"}, {"text": "other"}, {"text": "t"}]
    assert await count_requests(lab) == 2


async def test_if_the_first_step_changed_people_are_asked_again_about_all(lab: ApprovalLab) -> None:
    for name in "ab":
        notes[name] = "t"
        await write(lab, "close", name=name)
    answer = await undo(lab)
    first_id = answer["approval"]["approval_id"]
    await lab.lab.db.execute("update deputize.approvals set previewed_at = previewed_at - interval '1 day'")
    notes["closed b"] = "other"
    await lab.approve(await make_sam(lab), first_id)

    async def is_asked_again() -> bool:
        return bool((await lab.fetch_request(first_id))["state"] == "void")

    await wait_until(is_asked_again)
    answer = await undo(lab)
    assert (list_states(answer), answer["approval"]["steps"]) == (["awaiting_approval"], 2)
    shown = await lab.approvals.get_request(await make_sam(lab), answer["approval"]["approval_id"])
    assert [each["decision"] for each in shown["undo_steps"]] == ["ask", "ask"]
    await approve(lab, answer)
    assert (list_states(await undo(lab)), notes) == (["succeeded"], {"a": "t", "b": "other"})


async def test_what_hooks_ask_about_is_approved_together_too(fresh_database: str, tmp_path: Path) -> None:
    def ask(call: HookCall) -> Permission:
        return Permission(behavior="ask", reason="a hook asks")

    hook = LoadedHook(name="wary", moment="before", function=ask, is_async=False, tools="book.remove", seconds=60)
    notes.clear()
    tools = [*TOOLS, *notebook_tools.TOOLS]
    async with open_approval_lab(fresh_database, tmp_path, rules=None, tools=tools, hooks=[hook]) as lab:
        for name in "abc":
            await write(lab, "add", name=name, text="t")
        answer = await undo(lab)
        assert answer["approval"]["steps"] == 3
        await approve(lab, answer)
        assert (list_states(await undo(lab)), notes) == (["succeeded"] * 2, {})


async def test_people_see_which_steps_need_them_and_which_would_be_refused(lab: ApprovalLab) -> None:
    await write(lab, "add", name="a", text="t")
    await write(lab, "stamp", name="a")
    await write(lab, "pin", name="a", text="p")
    await write(lab, "add", name="b", text="t")
    no_unpinning = (
        '@id("no-unpinning") @reason("It stays.") forbid (principal, action, resource == Tool::"book.unpin");'
    )
    await lab.put_policies(RULES + no_unpinning)
    eva = await lab.lab.make_caller("eva", scopes=("book:write", "book:stamps", UNDO_SCOPE))
    answer = await undo(lab, eva)
    shown = await lab.approvals.get_request(await make_sam(lab), answer["approval"]["approval_id"])
    assert [(each["tool"], each["decision"]) for each in shown["undo_steps"]] == [
        ("book.remove", "ask"), ("book.unpin", "refused"), ("book.unstamp", "allow"), ("book.remove", "ask"),
    ]  # fmt: skip
    assert "It stays." in shown["undo_steps"][1]["detail"]
    await approve(lab, answer)
    # The undo ends at the refused step, as without an approval; what is behind it was approved.
    assert list_states(await undo(lab, eva)) == ["denied"]
    added = (await plan(lab, eva))["steps"][-1]["call_id"]
    assert list_states(await undo(lab, eva, call_id=added)) == ["succeeded"]


async def test_steps_under_changed_rules_ask_anew(lab: ApprovalLab) -> None:
    await ask_for_three(lab)
    await lab.put_policies(CHANGED_RULES)
    answer = await undo(lab)
    assert (list_states(answer), answer["approval"]["steps"]) == (["awaiting_approval"], 2)
    # As they were again, they are what was approved.
    await lab.put_policies(RULES)
    await lab.lab.gateway.cancellations.cancel_call(await make_person(lab), answer["made"][0]["call_id"])
    assert list_states(await undo(lab)) == ["succeeded"] * 2


async def test_code_that_changed_is_not_made_by_the_approval(fresh_database: str, tmp_path: Path) -> None:
    tools, edited = (
        [replace(each, code_digest=digest) for each in notebook_tools.TOOLS] for digest in ("sha256:aa", "sha256:bb")
    )
    notes.clear()
    async with open_approval_lab(fresh_database, tmp_path, rules=RULES, tools=tools) as lab:
        await ask_for_three(lab)
    async with open_approval_lab(fresh_database, tmp_path, rules=RULES, tools=edited) as lab:
        answer = await undo(lab)
        assert (list_states(answer), answer["approval"]["steps"]) == (["awaiting_approval"], 2)
        assert sorted(notes) == ["c", "closed a", "closed b"]


async def test_a_call_that_nobody_saw_is_not_made_by_the_approval(lab: ApprovalLab) -> None:
    """Other values, another tool, a run, somebody else, an agent: for the same entry of the journal."""
    await ask_for_three(lab)
    eva, bo = await make_person(lab), await make_person(lab, "bo")
    bot = await lab.lab.make_caller("eva", agent="bot", scopes=("book:write", UNDO_SCOPE))
    wider = await make_person(lab, "eva", ADMIN_SCOPE)
    (entry_id,) = await lab.lab.db.fetchrow(
        "select id from deputize.journal where tool = 'book.close' and scope = 'a'"
    ) or [None]
    notes["closed z"] = "t"
    seen = CallRequest(tool="book.reopen", arguments={"name": "a"}, undoes=str(entry_id))
    run = get_lifecycle(lab.lab.gateway).run
    for caller, request in (
        (eva, replace(seen, arguments={"name": "z"})), (eva, replace(seen, tool="book.remove")),
        (eva, replace(seen, mode="async")), (bo, seen), (bot, seen), (wider, seen),
    ):  # fmt: skip
        outcome = await run(caller, request)
        assert outcome.state is State.AWAITING_APPROVAL, outcome.body
        await lab.lab.gateway.cancellations.cancel_call(caller, outcome.call_id)
    assert (await run(eva, seen)).state is State.SUCCEEDED
    assert sorted(notes) == ["a", "c", "closed b", "closed z"]


async def test_a_step_under_another_one_is_approved_without_a_preview(lab: ApprovalLab) -> None:
    notes["a"] = "t"
    await write(lab, "close", name="a")
    await write(lab, "reopen", name="a")
    await write(lab, "close", name="a")
    await lab.put_policies(RULES.replace('Tool::"book.reopen"]', 'Tool::"book.reopen", Tool::"book.close"]'))
    answer = await undo(lab)
    shown = await lab.approvals.get_request(await make_sam(lab), answer["approval"]["approval_id"])
    assert [each["preview"] is None for each in shown["undo_steps"]] == [False, True, True]
    await approve(lab, answer)
    assert list_states(await undo(lab)) == ["succeeded"] * 2
    assert notes == {"a": "t"}


async def test_nothing_is_lost_between_any_two_steps(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is made by another process, which is gone before the next one."""
    tools = [*TOOLS, *notebook_tools.TOOLS]
    notes.clear()
    async with open_approval_lab(fresh_database, tmp_path, rules=RULES, tools=tools) as lab:
        request_id = await ask_for_three(lab)
    monkeypatch.setattr(undo_steps, "MAX_STEPS", 1)
    for left in (1, 0):
        async with open_approval_lab(fresh_database, tmp_path, rules=RULES, tools=tools, with_worker=False) as lab:
            answer = await undo(lab)
            assert (list_states(answer), answer["left"]["ready"]) == (["succeeded"], left)
            assert {each.get("approval") for each in await lab.lab.fetch_entries(answer["made"][0]["call_id"])} == {
                request_id
            }
    async with open_approval_lab(fresh_database, tmp_path, rules=RULES, tools=tools, with_worker=False) as lab:
        assert (await undo(lab))["made"] == []
        assert await count_requests(lab) == 1
    assert notes == dict.fromkeys("abc", "t")


async def test_a_step_that_did_nothing_is_repeated_under_its_approval_and_one_that_acted_is_not(
    lab: ApprovalLab,
) -> None:
    for name in "ab":
        await write(lab, "add", name=name, text="t")
    await approve(lab, await undo(lab))
    failures["a"] = ToolPrecondition("not now", nothing_happened=True)
    assert list_states(await undo(lab)) == ["failed"]
    answer = await undo(lab)
    assert (list_states(answer), notes) == (["succeeded"], {})
    # It was made, and taken back again: what the approval was for is done.
    await undo(lab, call_id=answer["made"][0]["call_id"])
    notes["a"] = "new"
    (entry_id,) = {answer["made"][0]["entry_id"]}
    request = CallRequest(tool="book.remove", arguments={"name": "a"}, undoes=entry_id)
    outcome = await get_lifecycle(lab.lab.gateway).run(await make_person(lab), request)
    assert (outcome.call_id, outcome.is_replay, notes) == (answer["made"][0]["call_id"], True, {"a": "new"})


async def test_two_people_with_overlapping_approvals_take_each_call_back_once(lab: ApprovalLab) -> None:
    for name in "abcd":
        await write(lab, "add", name=name, text="t")
    people = [await make_person(lab, name, ADMIN_SCOPE) for name in ("ria", "tom")]
    await approve(lab, await undo(lab, people[0]))
    # The second one asks about the three that are left.
    second = await undo(lab, people[1])
    assert second["approval"]["steps"] == 3
    await lab.approve(await make_sam(lab), second["approval"]["approval_id"])
    answers = await asyncio.gather(*(undo(lab, each) for each in people), return_exceptions=True)
    assert not any(isinstance(each, AssertionError) for each in answers)
    await wait_until(lambda: has_ended(lab, second["made"][-1]["call_id"]))
    for _ in range(3):
        for each in people:
            await undo(lab, each)
    effects = await lab.lab.db.fetch("select count(*) from deputize.journal where tool = 'book.remove' group by undoes")
    assert ([each["count"] for each in effects], notes) == ([1] * 4, {})


async def test_the_approval_ends_with_the_authority_of_who_asked(lab: ApprovalLab) -> None:
    await ask_for_three(lab)
    revoke, admin = lab.lab.gateway.commands.revoke, await lab.lab.make_admin()
    await revoke(admin, "token", (await make_person(lab)).token_id)
    token = mint_dev_token(lab.lab.folder, subject="eva", scopes=("book:write", UNDO_SCOPE))
    eva = await lab.lab.gateway.authenticate(f"Bearer {token}".encode())
    answer = await undo(lab, eva)
    assert (list_states(answer), answer["approval"]["steps"]) == (["awaiting_approval"], 2)
    await approve(lab, answer)
    await revoke(admin, "subject", "eva")
    seen = CallRequest(tool="book.reopen", arguments={"name": "a"}, undoes=answer["left"]["steps"][-1]["entry_id"])
    outcome = await get_lifecycle(lab.lab.gateway).run(eva, seen)
    assert (outcome.state, outcome.spec is not None and outcome.spec.slug) == (State.DENIED, "revoked")
    assert "closed a" in notes


async def test_an_approval_that_is_open_denied_or_over_is_for_no_step(lab: ApprovalLab) -> None:
    await ask_for_three(lab)
    caller = await make_person(lab)
    (step,) = [each for each in (await plan(lab, caller))["steps"] if each["arguments"] == {"name": "a"}]
    seen = CallRequest(tool="book.reopen", arguments={"name": "a"}, undoes=step["entry_id"])
    for change in (
        *(f"state = '{each}'" for each in ("open", "denied", "expired", "void", "canceled")),
        "state = 'used', expires_at = now() - interval '1 second'",
    ):
        await lab.lab.db.execute(f"update deputize.approvals set {change} where state <> 'canceled' or true")
        outcome = await get_lifecycle(lab.lab.gateway).run(caller, replace(seen, dry_run=True))
        assert outcome.state is State.SUCCEEDED
        authorized = await decide_call(lab.lab.runtime, get_lifecycle(lab.lab.gateway)._receive(caller, seen))
        assert (await find_plan_approval(lab.lab.runtime, authorized)).approval is None, change
    await lab.lab.db.execute("update deputize.approvals set expires_at = now() + interval '1 minute'")
    assert (await find_plan_approval(lab.lab.runtime, authorized)).approval is not None


async def test_an_earlier_approval_does_not_outlive_a_denial(lab: ApprovalLab) -> None:
    await ask_for_three(lab)
    await lab.put_policies(CHANGED_RULES)
    answer = await undo(lab)
    request_id = answer["approval"]["approval_id"]
    await lab.approvals.deny(await make_sam(lab), request_id, reason="not any more")
    await lab.put_policies(RULES)
    answer = await undo(lab)
    assert (list_states(answer), answer["approval"]["steps"]) == (["awaiting_approval"], 2)


async def test_no_other_tenant_uses_the_approval(lab: ApprovalLab) -> None:
    """The person of the same name in another tenant names the entry, and the request is copied there."""
    await ask_for_three(lab)
    eva = await make_person(lab)
    (step,) = [each for each in (await plan(lab, eva))["steps"] if each["arguments"] == {"name": "a"}]
    seen = CallRequest(tool="book.reopen", arguments={"name": "a"}, undoes=step["entry_id"])
    authorized = await decide_call(lab.lab.runtime, get_lifecycle(lab.lab.gateway)._receive(eva, seen))
    assert (await find_plan_approval(lab.lab.runtime, authorized)).approval is not None
    stranger = replace(eva, tenant="other")
    call = replace(authorized.call, caller=stranger)
    theirs = replace(authorized, validated=replace(authorized.validated, call=call))
    assert theirs.call.tenant == "other"
    assert (await find_plan_approval(lab.lab.runtime, theirs)).approval is None


async def test_a_plan_is_decided_in_no_batch_and_by_no_release_that_cannot_show_it(lab: ApprovalLab) -> None:
    for name in "ab":
        await write(lab, "add", name=name, text="t")
        await write(lab, "add", user="tom", name=f"{name} of tom", text="t")
    requests = [(await undo(lab, await make_person(lab, each)))["approval"]["approval_id"] for each in ("eva", "tom")]
    with pytest.raises(MalformedRequest, match="differs from"):
        await lab.approve_many(await make_sam(lab), requests, vary=["name", "for_user"])
    (demand,) = orjson.loads((await lab.fetch_request(requests[0]))["demands"])
    with pytest.raises(TypeError):
        # As the release before this one reads it.
        ApprovalRequirement(**demand)


async def test_what_was_shown_is_what_a_vote_is_bound_to(lab: ApprovalLab) -> None:
    for name in "ab":
        await write(lab, "add", name=name, text="t")
    answer = await undo(lab)
    request_id = answer["approval"]["approval_id"]
    keys = lab.lab.runtime.keys.find("dev")
    assert keys is not None
    contents = ApprovalContents.decrypt(keys, request_id, (await lab.fetch_request(request_id))["presentation"])
    assert contents.undo is not None
    (digests,) = contents.undo.step_digests.values()
    for undo_approval in (
        replace(contents.undo, step_digests={}),
        replace(contents.undo, step_digests={"01890000-0000-7000-8000-000000000000": digests}),
    ):
        sealed = replace(contents, undo=undo_approval).encrypt(keys, request_id)
        await lab.lab.db.execute("update deputize.approvals set presentation = $2 where id = $1", request_id, sealed)
    await approve(lab, answer)
    assert await lab.lab.fetch_state(answer["made"][0]["call_id"]) == "denied"
    assert sorted(notes) == ["a", "b"]


async def test_only_a_step_that_asks_looks_for_an_approval(lab: ApprovalLab) -> None:
    await lab.put_policies(
        RULES.replace('Tool::"book.remove", Tool::"book.change"', 'Tool::"book.change"')
        + '@id("titles-ask") @decision("ask") permit (principal, action, resource == Tool::"book.title");'
    )
    async with count_queries(lab.lab.runtime.store) as names:
        await write(lab, "pin", name="c", text="p")
        pinned = await write(lab, "pin", name="d", text="p")
        caller = await make_person(lab)
        await lab.lab.gateway.run_call(caller, CallRequest(tool="book.title", arguments={"name": "a", "text": "t"}))
        assert list_states(await undo(lab, call_id=pinned)) == ["succeeded"]
    assert "find_plan_approvals" not in names
