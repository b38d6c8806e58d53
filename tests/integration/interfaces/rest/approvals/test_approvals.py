"""Approvals over REST: who sees what waits, who decides it, and who does not, whatever they send."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio

from deputize import CallFailed, Client
from tests.integration.conftest import ADMIN
from tests.integration.interfaces.rest.test_openapi import OpenApiChecker
from tests.support import shop_tools
from tests.support.approval_gateway import ApprovalGateway, open_approval_gateway

pytestmark = pytest.mark.requirement("GOV-3")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def approval_gateway(
    module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ApprovalGateway]:
    async with open_approval_gateway(module_database, tmp_path_factory.mktemp("office")) as opened:
        yield opened


async def wait_for_end(approval_gateway: ApprovalGateway, call: str) -> dict[str, Any]:
    async with asyncio.timeout(90):
        while True:
            told: dict[str, Any] = (await approval_gateway.gateway.get(f"/v1/calls/{call}")).json()
            if told["state"] not in ("awaiting_approval", "queued", "running"):
                return told
            await asyncio.sleep(0.05)


async def _follow_events(approval_gateway: ApprovalGateway, call: str) -> AsyncIterator[dict[str, Any]]:
    headers = {"authorization": f"Bearer {approval_gateway.gateway.token()}"}
    async with approval_gateway.gateway.http.stream("GET", f"/v1/calls/{call}/events", headers=headers) as stream:
        name = ""
        async for line in stream.aiter_lines():
            if line.startswith("event:"):
                name = line[6:].strip()
            elif line.startswith("data:"):
                yield {"event": name, **orjson.loads(line[5:])}


async def test_a_call_that_needs_people_says_whom_and_until_when(approval_gateway: ApprovalGateway) -> None:
    answer = await approval_gateway.gateway.call("shop.delete_user", {"id": 7}, key="says")
    told = answer.json()
    approval = told["approval"]

    assert (answer.status_code, told["state"], told["is_error"]) == (202, "awaiting_approval", False)
    assert answer.headers["location"] == f"/v1/calls/{told['call_id']}"
    assert (approval["state"], approval["groups"]) == ("open", ["oncall"])
    assert approval["rules"] == [
        {"id": "deleting-asks", "where": "asking.cedar:5", "reason": "Somebody looks before a user is gone."}
    ]
    assert approval["url"].endswith(f"/console/approvals/{approval['approval_id']}")
    assert approval["escalates_at"] < approval["expires_at"]
    looked = (await approval_gateway.gateway.get(f"/v1/calls/{told['call_id']}")).json()
    assert (looked["state"], looked["approval"]) == ("awaiting_approval", {**approval, "reason": None})
    again = await approval_gateway.gateway.call("shop.delete_user", {"id": 7}, key="says")
    assert (again.status_code, again.json()["approval"]) == (202, approval)


async def test_json_rpc_says_the_same(approval_gateway: ApprovalGateway) -> None:
    asked = {"tool": "shop.delete_user", "arguments": {"id": 7}, "idempotency_key": "rpc"}
    made = (await approval_gateway.gateway.call_rpc("calls.create", asked))["result"]
    looked = (await approval_gateway.gateway.call_rpc("calls.get", {"call_id": made["call_id"]}))["result"]

    assert made["state"] == looked["state"] == "awaiting_approval"
    assert looked["approval"] == {**made["approval"], "reason": None}
    await approval_gateway.decide(
        "deny", made["call_id"], token=approval_gateway.sign_token(), reason="not by RPC either"
    )
    ended = (await approval_gateway.gateway.call_rpc("calls.get", {"call_id": made["call_id"]}))["result"]
    assert (ended["state"], ended["error"]["details"]["reason"]) == ("denied", "not by RPC either")
    again = (await approval_gateway.gateway.call_rpc("calls.create", asked))["error"]
    assert (again["data"]["error"]["slug"], "not by RPC either" in again["message"]) == ("approval-rejected", True)


async def test_a_person_sees_decides_and_the_call_goes_on(approval_gateway: ApprovalGateway) -> None:
    told = await approval_gateway.request_approval(key="goes-on", id=31)
    bo = approval_gateway.sign_token()
    listed = (await approval_gateway.gateway.get("/v1/approvals", token=bo)).json()["approvals"]
    ticket = next(each["approval_id"] for each in listed if each["call_id"] == told["call_id"])
    shown = await approval_gateway.fetch_request(ticket, token=bo)

    assert (shown["arguments"], shown["for_user"], shown["may_decide"]) == ({"id": 31}, "ana", True)
    assert [each["count"] for each in shown["preview"]["changes"]] == [1, 14]
    answer = await approval_gateway.decide("approve", ticket, token=bo, reason="GDPR 881", binding=shown["binding"])
    assert (answer.status_code, answer.json()["state"], answer.json()["call_state"]) == (200, "approved", "queued")
    assert (await wait_for_end(approval_gateway, told["call_id"]))["result"] == {"deleted": 31}
    assert shop_tools.effects.count(("delete", 31)) == 1
    after = await approval_gateway.fetch_request(told["call_id"], token=bo)
    assert (after["state"], [each["by"] for each in after["votes"]], after["may_decide"]) == ("used", ["bo"], False)


async def test_a_token_that_could_not_make_the_call_sees_nothing_of_its_request(
    approval_gateway: ApprovalGateway,
) -> None:
    told, gateway = await approval_gateway.request_approval(key="narrow", id=33), approval_gateway.gateway
    ticket, path = told["approval"]["approval_id"], f"/v1/calls/{told['call_id']}/cancel"
    for narrow in (gateway.token(tools={"shop.get_user": "*"}), gateway.token(scopes=())):
        assert (await gateway.get(f"/v1/approvals/{ticket}", token=narrow)).status_code == 404
        assert ticket not in (await gateway.get("/v1/approvals", token=narrow)).text
        assert (await gateway.post(path, {}, token=narrow)).status_code == 404
    assert ticket in (await gateway.get("/v1/approvals")).text
    assert (await gateway.get(f"/v1/approvals/{ticket}")).json()["state"] == "open"


async def test_a_no_is_read_by_who_asked(approval_gateway: ApprovalGateway) -> None:
    told = await approval_gateway.request_approval(key="no", id=32)
    ticket = told["approval"]["approval_id"]
    assert (await approval_gateway.decide("deny", ticket, token=approval_gateway.sign_token())).status_code == 400
    answer = await approval_gateway.decide(
        "deny", ticket, token=approval_gateway.sign_token(), reason="not on a Sunday"
    )
    assert (answer.status_code, answer.json()["call_state"]) == (200, "denied")
    outcome = await approval_gateway.gateway.get(f"/v1/calls/{told['call_id']}")
    assert outcome.json()["error"]["details"] == {"approval_id": ticket, "reason": "not on a Sunday"}
    again = await approval_gateway.gateway.call("shop.delete_user", {"id": 32}, key="no")
    assert (again.status_code, again.content) == (403, outcome.content)
    assert ("delete", 32) not in shop_tools.effects


async def test_a_stream_tells_who_is_asked_and_why_it_was_no(approval_gateway: ApprovalGateway) -> None:
    told = await approval_gateway.request_approval(key="stream", id=33)
    events = []
    async with asyncio.timeout(90):
        async for facts in _follow_events(approval_gateway, told["call_id"]):
            events.append(facts)
            if len(events) == 1:
                await approval_gateway.decide(
                    "deny", told["call_id"], token=approval_gateway.sign_token(), reason="keep her"
                )
    waits, end = events
    assert (waits["event"], end["event"]) == ("tool.permission.requested", "tool.permission.decided")
    assert (waits["state"], waits["approval"]["groups"]) == ("awaiting_approval", ["oncall"])
    assert (end["state"], end["approval"]["state"], end["approval"]["reason"]) == ("denied", "denied", "keep her")


async def test_a_stream_tells_when_more_people_are_asked(approval_gateway: ApprovalGateway) -> None:
    told = await approval_gateway.request_approval(key="escalates", id=64)
    asked: list[list[str]] = []
    async with asyncio.timeout(90), approval_gateway.connect_database() as database:
        async for facts in _follow_events(approval_gateway, told["call_id"]):
            if facts["state"] == "awaiting_approval":
                asked.append(facts["approval"]["groups"])
            if asked == [["oncall"]]:
                await database.execute(
                    "insert into deputize.approval_groups (tenant, grp, id) values ('dev', 'leads', $1)",
                    told["approval"]["approval_id"],
                )
            elif facts["state"] == "awaiting_approval":
                await approval_gateway.gateway.post(f"/v1/calls/{told['call_id']}/cancel")
    assert asked == [["oncall"], ["leads", "oncall"]]


async def test_a_call_nobody_decided_about_can_be_taken_back(approval_gateway: ApprovalGateway) -> None:
    told = await approval_gateway.request_approval(key="back", id=34)
    canceled = (await approval_gateway.gateway.post(f"/v1/calls/{told['call_id']}/cancel")).json()
    assert (canceled["state"], canceled["detail"]) == ("canceled", "it was not approved yet, and nothing was executed")
    assert (
        "it was not approved yet"
        in (await approval_gateway.gateway.get(f"/v1/calls/{told['call_id']}")).json()["detail"]
    )
    late = await approval_gateway.decide("approve", told["call_id"], token=approval_gateway.sign_token())
    assert (late.status_code, late.json()["error"]["slug"]) == (409, "human-task-closed")


@pytest.mark.parametrize("word", ["approve", "deny", "break-glass"])
async def test_no_agent_and_no_program_decides(approval_gateway: ApprovalGateway, word: str) -> None:
    gateway = approval_gateway.gateway
    lent, root = await gateway.exchange_token(), gateway.token("root", scopes=[ADMIN])
    told = (await gateway.call("shop.delete_user", {"id": 35}, token=lent, key=f"agents-{word}")).json()
    ticket = told["approval"]["approval_id"]
    for token, rule in (
        (lent, "humans-only"),
        (gateway.token(agent="bot", scopes=[ADMIN]), "humans-only"),
        (gateway.token(), "console-audience"),
        (root, "console-audience"),
        (approval_gateway.sign_token("cron", azp="cron", audience="deputize", scope=ADMIN), "humans-only"),
    ):
        refused = await approval_gateway.decide(word, ticket, token=token, reason="let me")
        assert (refused.status_code, refused.json()["error"]["details"].get("rule")) == (403, rule), refused.text
    stranger = await approval_gateway.decide(
        word, ticket, token=gateway.token("ana", agent="other-bot"), reason="let me"
    )
    assert stranger.status_code == 404
    assert (await gateway.get(f"/v1/calls/{told['call_id']}")).json()["state"] == "awaiting_approval"


async def test_a_token_for_deciding_does_nothing_else(approval_gateway: ApprovalGateway) -> None:
    bo = approval_gateway.sign_token(scope="shop:delete deputize:admin")
    for answer in (
        await approval_gateway.gateway.call("shop.delete_user", {"id": 1}, token=bo, key="console"),
        await approval_gateway.gateway.get("/v1/calls", token=bo),
        await approval_gateway.gateway.get("/v1/human-tasks", token=bo),
    ):
        assert (answer.status_code, answer.json()["error"]["slug"]) == (401, "token-audience")


@pytest.mark.parametrize(
    ("rule", "facts"),
    [
        ("no-self-approval", {"name": "ana"}),
        ("no-self-approval", {"name": "ANA"}),
        ("approver-group", {"groups": ["leads"]}),
        ("fresh-sign-in", {"ago": 1000}),
        ("fresh-sign-in", {"auth_time": None}),
        ("console-audience", {"audience": "deputize", "scope": ADMIN}),
    ],
)
async def test_a_refused_approver_learns_which_rule_refused(
    approval_gateway: ApprovalGateway, rule: str, facts: dict[str, Any]
) -> None:
    told = await approval_gateway.request_approval(key=f"{rule}-{'-'.join(map(str, facts.values()))}", id=36)
    ticket = told["approval"]["approval_id"]
    token = approval_gateway.sign_token(**facts)
    refused = await approval_gateway.decide("approve", ticket, token=token)
    assert (refused.status_code, refused.json()["error"]["details"]["rule"]) == (403, rule)
    shown = await approval_gateway.fetch_request(ticket, token=token)
    assert (shown["may_decide"], bool(shown["why_not"])) == (False, True)
    assert (await approval_gateway.gateway.get(f"/v1/calls/{told['call_id']}")).json()["state"] == "awaiting_approval"


async def test_every_person_who_is_needed_once_and_signed_in_as_the_rule_says(
    approval_gateway: ApprovalGateway,
) -> None:
    told = await approval_gateway.request_approval("shop.rename_user", key="two", id=5, name="Bo")
    ticket = told["approval"]["approval_id"]
    weak = await approval_gateway.decide("approve", ticket, token=approval_gateway.sign_token("l0", groups=["leads"]))
    assert weak.json()["error"]["details"] == {"rule": "step-up", "step_up": "hwk"}
    first, second = (approval_gateway.sign_token(name, groups=["leads"], amr=["hwk"]) for name in ("l1", "l2"))
    half = await approval_gateway.decide("approve", ticket, token=first)
    assert (half.json()["state"], half.json()["call_state"]) == ("open", "awaiting_approval")
    twice = await approval_gateway.decide("approve", ticket, token=first)
    assert twice.json()["error"]["details"]["rule"] == "one-vote-each"
    assert (await approval_gateway.fetch_request(ticket, token=second))["demands"][0]["have"] == 1
    whole = await approval_gateway.decide("approve", ticket, token=second)
    assert whole.json()["state"] == "approved"
    late = await approval_gateway.decide(
        "deny", ticket, token=approval_gateway.sign_token("l3", groups=["leads"]), reason="too late"
    )
    assert (late.status_code, late.json()["error"]["slug"]) == (409, "human-task-closed")
    assert (await wait_for_end(approval_gateway, told["call_id"]))["state"] == "succeeded"


async def test_a_decision_bound_to_another_request_is_refused(approval_gateway: ApprovalGateway) -> None:
    told = await approval_gateway.request_approval(key="binding", id=37)
    for word in ("approve", "deny"):
        answer = await approval_gateway.decide(
            word, told["call_id"], token=approval_gateway.sign_token(), reason="as I saw it", binding="0" * 64
        )
        assert (answer.status_code, answer.json()["error"]["slug"]) == (409, "approval-changed")
    wrong = await approval_gateway.decide("approve", told["call_id"], token=approval_gateway.sign_token(), binding="x")
    assert wrong.status_code == 400
    assert (await approval_gateway.fetch_request(told["call_id"], token=approval_gateway.sign_token()))[
        "state"
    ] == "open"


@pytest.mark.parametrize("word", ["approve", "break-glass"])
async def test_nothing_is_approved_without_the_version_that_was_read(
    approval_gateway: ApprovalGateway, word: str
) -> None:
    told = await approval_gateway.request_approval(key=f"no-binding-{word}", id=41)
    ticket, bo = told["approval"]["approval_id"], approval_gateway.sign_token(scope="deputize:break-glass")
    for more in ({}, {"binding": None}):
        answer = await approval_gateway.gateway.post(
            f"/v1/approvals/{ticket}/{word}", {"reason": "unread", **more}, token=bo
        )
        error = answer.json()["error"]
        assert (answer.status_code, error["details"]) == (400, {"field": "binding"})
        assert "Read the approval request first" in error["advice"]
    shown = await approval_gateway.fetch_request(ticket, token=bo)
    assert (shown["state"], shown["votes"]) == ("open", [])


async def test_a_batch_is_approved_only_in_the_versions_that_were_read(approval_gateway: ApprovalGateway) -> None:
    first, second = [
        (await approval_gateway.request_approval(key=f"unread-{number}", id=42))["approval"]["approval_id"]
        for number in range(2)
    ]
    bindings = {each: await approval_gateway.read_binding(each) for each in (first, second)}
    said = {"decision": "approve", "approval_ids": [first, second]}
    bo = approval_gateway.sign_token()
    for incomplete in ({}, {first: bindings[first]}):
        refused = await approval_gateway.gateway.post("/v1/approvals/batch", {**said, "bindings": incomplete}, token=bo)
        assert (refused.status_code, refused.json()["error"]["details"]["field"]) == (400, "bindings")
    stale = {**bindings, first: bindings[second]}
    answer = await approval_gateway.gateway.post("/v1/approvals/batch", {**said, "bindings": stale}, token=bo)
    told = [(each["state"], each.get("refusal_slug")) for each in answer.json()["decisions"]]
    assert told == [("open", "approval-changed"), ("approved", None)]


async def test_nobody_crosses_into_another_tenant(approval_gateway: ApprovalGateway) -> None:
    told = await approval_gateway.request_approval(key="tenants", id=38)
    ticket = told["approval"]["approval_id"]
    stranger = approval_gateway.sign_token("olga", groups=["oncall", "leads"], tenant="other", scope="deputize:admin")
    listed = await approval_gateway.gateway.get("/v1/approvals", token=stranger, state="all")
    assert listed.json() == {"approvals": [], "next_before": None}
    assert (await approval_gateway.gateway.get(f"/v1/approvals/{ticket}", token=stranger)).status_code == 404
    for word in ("approve", "deny", "break-glass"):
        for named in (ticket, told["call_id"]):
            refused = await approval_gateway.decide(
                word, named, token=stranger, reason="mine now", code=approval_gateway.find_code(ticket)
            )
            assert (refused.status_code, refused.json()["error"]["slug"]) == (404, "human-task-not-found")
    many = {
        "approval_ids": [ticket],
        "decision": "approve",
        "bindings": {ticket: await approval_gateway.read_binding(ticket)},
    }
    assert (await approval_gateway.gateway.post("/v1/approvals/batch", many, token=stranger)).status_code == 404
    assert (await approval_gateway.gateway.get(f"/v1/calls/{told['call_id']}")).json()["state"] == "awaiting_approval"


async def test_who_has_nothing_to_do_with_it_does_not_even_learn_that_it_is_there(
    approval_gateway: ApprovalGateway,
) -> None:
    told = await approval_gateway.request_approval(key="hidden", id=39)
    for token in (approval_gateway.gateway.token("eve"), approval_gateway.sign_token("eve", groups=["gardeners"])):
        assert (await approval_gateway.gateway.get(f"/v1/approvals/{told['call_id']}", token=token)).status_code == 404
        assert (await approval_gateway.gateway.get("/v1/approvals", token=token, state="all")).json()["approvals"] == []
    mine = (await approval_gateway.gateway.get("/v1/approvals")).json()["approvals"]
    assert told["call_id"] in [each["call_id"] for each in mine]
    assert (await approval_gateway.gateway.get("/v1/approvals/nonsense")).status_code == 404
    assert (await approval_gateway.gateway.get("/v1/approvals", state="maybe")).status_code == 400


async def test_pages_go_on_where_the_last_one_ended(approval_gateway: ApprovalGateway) -> None:
    made = [
        (await approval_gateway.request_approval(key=f"page-{number}", id=40))["approval"]["approval_id"]
        for number in range(3)
    ]
    first = (await approval_gateway.gateway.get("/v1/approvals", token=approval_gateway.sign_token(), limit=2)).json()
    rest = (
        await approval_gateway.gateway.get(
            "/v1/approvals", token=approval_gateway.sign_token(), before=first["next_before"]
        )
    ).json()
    assert [each["approval_id"] for each in (*first["approvals"], *rest["approvals"])][:3] == made[::-1]


async def test_equal_calls_are_decided_at_once_and_each_is_listed(approval_gateway: ApprovalGateway) -> None:
    made = [
        (await approval_gateway.request_approval(key=f"many-{number}", id=50 + number))["approval"]["approval_id"]
        for number in range(3)
    ]
    other = (await approval_gateway.request_approval("shop.rename_user", key="many-odd", id=1, name="B"))["approval"][
        "approval_id"
    ]
    bo = approval_gateway.sign_token(groups=["oncall", "leads"])

    bindings = {each: await approval_gateway.read_binding(each) for each in (*made, other)}

    async def decide_batch(token: str = bo, **fields: Any) -> Any:
        body = {"decision": "approve", "bindings": bindings, **fields}
        return await approval_gateway.gateway.post("/v1/approvals/batch", body, token=token)

    assert (await decide_batch(approval_ids=made)).json()["error"]["details"]["differ"] == ["id"]
    assert (await decide_batch(approval_ids=[made[0], other], vary=["id", "name"])).status_code == 400
    assert (await decide_batch(approval_ids=[], vary=["id"])).status_code == 400
    assert (await decide_batch(approval_ids=made, vary=["id"], decision="deny")).status_code == 400
    refused = (
        await decide_batch(approval_gateway.gateway.token("root", scopes=[ADMIN]), approval_ids=made, vary=["id"])
    ).json()
    assert {each["refusal_slug"] for each in refused["decisions"]} == {"not-an-approver"}
    late = approval_gateway.sign_token("late", ago=5000)
    assert {
        each["state"] for each in (await decide_batch(late, approval_ids=made, vary=["id"])).json()["decisions"]
    } == {"open"}
    decided = (await decide_batch(approval_ids=made, vary=["id"])).json()["decisions"]
    assert [(each["arguments"]["id"], each["state"]) for each in decided] == [(50 + n, "approved") for n in range(3)]
    for each in decided:
        assert (await wait_for_end(approval_gateway, each["call_id"]))["state"] == "succeeded"


async def test_one_that_is_decided_already_keeps_no_other_from_being_decided(approval_gateway: ApprovalGateway) -> None:
    made = [
        (await approval_gateway.request_approval(key=f"some-{number}", id=55))["approval"]["approval_id"]
        for number in range(3)
    ]
    await approval_gateway.decide("deny", made[1], token=approval_gateway.sign_token("cy"), reason="not this one")
    said = {"decision": "deny", "approval_ids": made, "reason": "none of them"}
    answer = await approval_gateway.gateway.post("/v1/approvals/batch", said, token=approval_gateway.sign_token())
    assert answer.status_code == 200, answer.text
    told = [(each["state"], each.get("refusal_slug")) for each in answer.json()["decisions"]]
    assert told == [("denied", None), ("denied", "human-task-closed"), ("denied", None)]


async def test_two_people_break_the_glass(approval_gateway: ApprovalGateway) -> None:
    told = await approval_gateway.request_approval(key="glass", id=60)
    ticket = told["approval"]["approval_id"]
    scope = "deputize:break-glass"
    without = await approval_gateway.decide(
        "break-glass", ticket, token=approval_gateway.sign_token("g0"), reason="fire"
    )
    assert without.json()["error"]["details"]["rule"] == "break-glass-scope"
    one, two = (approval_gateway.sign_token(name, scope=scope) for name in ("g1", "g2"))
    assert (await approval_gateway.decide("break-glass", ticket, token=one)).status_code == 400
    assert (await approval_gateway.decide("break-glass", ticket, token=one, reason="fire")).json()["state"] == "open"
    assert (await approval_gateway.decide("break-glass", ticket, token=one, reason="fire")).status_code == 403
    assert (await approval_gateway.decide("break-glass", ticket, token=two, reason="fire")).json()[
        "state"
    ] == "approved"
    assert (await wait_for_end(approval_gateway, told["call_id"]))["result"] == {"deleted": 60}


async def test_anyone_who_reads_the_terminal_decides_in_development(approval_gateway: ApprovalGateway) -> None:
    told = await approval_gateway.request_approval(key="code", id=61)
    ticket, mine = told["approval"]["approval_id"], approval_gateway.gateway.token()
    wrong = await approval_gateway.decide("approve", ticket, token=mine, code="0000-0000")
    assert (wrong.status_code, wrong.json()["error"]["details"]["rule"]) == (403, "terminal-code")
    twice = await approval_gateway.gateway.http.post(
        f"/v1/approvals/{ticket}/approve",
        json={"binding": await approval_gateway.read_binding(ticket)},
        headers=[("authorization", f"Bearer {mine}"), *[("deputize-code", approval_gateway.find_code(ticket))] * 2],
    )
    assert twice.status_code == 400
    other = (await approval_gateway.request_approval(key="other-code", id=62))["approval"]["approval_id"]
    assert (
        await approval_gateway.decide("approve", ticket, token=mine, code=approval_gateway.find_code(other))
    ).status_code == 403
    answer = await approval_gateway.decide(
        "approve", ticket, token=mine, code=approval_gateway.find_code(ticket).lower().replace("-", " ")
    )
    assert (answer.status_code, answer.json()["state"]) == (200, "approved")
    assert (await wait_for_end(approval_gateway, told["call_id"]))["result"] == {"deleted": 61}
    spent = await approval_gateway.decide("approve", other, token=mine, code=approval_gateway.find_code(ticket))
    assert spent.status_code == 403


async def test_no_answer_ever_holds_a_code(approval_gateway: ApprovalGateway) -> None:
    told = await approval_gateway.request_approval(key="secret-code", id=63)
    ticket = told["approval"]["approval_id"]
    root = approval_gateway.gateway.token("root", scopes=[ADMIN])
    said = orjson.dumps(told).decode()
    for path in (
        f"/v1/approvals/{ticket}",
        "/v1/approvals",
        f"/v1/calls/{told['call_id']}",
        "/v1/human-tasks",
    ):
        for token in (approval_gateway.gateway.token(), root):
            said += (await approval_gateway.gateway.get(path, token=token)).text
    said += (await approval_gateway.decide("approve", ticket, token=root, code="AAAA-AAAA")).text
    code = approval_gateway.find_code(ticket)
    assert code not in said
    assert code.replace("-", "") not in said


async def test_a_program_waits_for_people_and_reads_why_they_said_no(approval_gateway: ApprovalGateway) -> None:
    async with Client(approval_gateway.gateway.url, approval_gateway.gateway.token()) as gateway:
        yes, no = [await gateway.call("shop.delete_user", id=number) for number in (72, 73)]
        assert yes.pending
        assert yes.approval is not None
        assert (yes.approval["groups"], yes.approval["state"]) == (["oncall"], "open")
        still = await gateway.wait(yes.call_id, seconds=0.1)
        assert still.approval == {**yes.approval, "reason": None}
        await approval_gateway.decide("approve", yes.call_id, token=approval_gateway.sign_token())
        await approval_gateway.decide("deny", no.call_id, token=approval_gateway.sign_token(), reason="keep them")
        done = await gateway.wait(yes.call_id, seconds=60)
        assert (done.pending, done.result) == (False, {"deleted": 72})
        with pytest.raises(CallFailed, match="keep them") as failed:
            await gateway.wait(no.call_id, seconds=60)
        assert failed.value.failure.slug == "approval-rejected"


async def test_people_are_answered_as_documented(approval_gateway: ApprovalGateway) -> None:
    checker = OpenApiChecker(
        approval_gateway.gateway, (await approval_gateway.gateway.http.get("/openapi.json")).json()
    )
    ask, ana, at = checker.request, approval_gateway.gateway.token(), "/v1/approvals"
    calls = [
        await approval_gateway.gateway.call("shop.delete_user", {"id": 70}, key=f"documented-{n}") for n in range(4)
    ]
    for each in calls:
        checker.check_response("post", "/v1/calls", each)
    first, second, *others = (each.json()["approval"]["approval_id"] for each in calls)
    await ask("get", "/v1/calls/{call_id}", calls[0].headers["location"], 200, token=ana)
    bo, stale = approval_gateway.sign_token(scope="deputize:break-glass"), approval_gateway.sign_token(ago=5000)
    await ask("get", at, f"{at}?limit=2", 200, token=bo)
    one = f"{at}/{{approval_id}}"
    await ask("get", one, f"{at}/{first}", 200, token=bo)
    seen = {"reason": "so", "binding": await approval_gateway.read_binding(first)}
    for word in ("approve", "deny", "break-glass"):
        await ask("post", f"{one}/{word}", f"{at}/{first}/{word}", 403, token=stale, body=seen)
    for word in ("approve", "break-glass"):
        await ask("post", f"{one}/{word}", f"{at}/{first}/{word}", 400, token=bo, body={"reason": "so"})
    await ask("post", f"{one}/break-glass", f"{at}/{first}/break-glass", 200, token=bo, body=seen)
    await ask("post", f"{one}/deny", f"{at}/{first}/deny", 403, token=bo, body={"reason": "so"})
    body = {"binding": await approval_gateway.read_binding(second)}
    await ask("post", f"{one}/approve", f"{at}/{second}/approve", 200, token=bo, body=body)
    await ask("get", one, f"{at}/{second}", 200, token=bo)
    many = {"approval_ids": others, "decision": "deny", "reason": "so", "vary": ["id"]}
    for token in (stale, bo):
        await ask("post", f"{at}/batch", f"{at}/batch", 200, token=token, body=many)
    await ask("post", f"{one}/deny", f"{at}/{others[0]}/deny", 409, token=bo, body={"reason": "so"})
