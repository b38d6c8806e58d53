"""Two tenants, two issuers: every route the composed application serves is tried with the other tenant's ids."""

import re
from functools import cache
from typing import Any

import asyncpg
import httpx2
import pytest
import pytest_asyncio

from deputize.interfaces.asgi import build_api
from deputize.interfaces.jsonrpc import METHODS
from tests.integration.conftest import ADMIN, SCOPES, HttpGateway
from tests.integration.interfaces.rest.approvals.test_human_tasks import make_human_task
from tests.support import shop_tools

pytestmark = pytest.mark.requirement("GOV-1")

UNKNOWN_CALL = "01890000-0000-7000-8000-000000000000"
UNKNOWN_TOOL = "shop.not_there_at_all"
OURS = "shop.rename_user"
VERSION = "0.1.0"
BODIES: dict[str, Any] = {
    "state": {"state": "retired"}, "negotiation": {"version": "*"}, "resolve": {"outcome": "happened", "reason": "x"},
    "tests": {"report": {"digest": f"sha256:{'0' * 64}", "cases": [{"verdict": "failed"}]}},
    "deprecation": {},
    "rollback": {"checkpoint": "half"}, "approve": {"binding": "0" * 64}, "deny": {"reason": "x"},
    "break-glass": {"reason": "x", "binding": "0" * 64},
    "decide": {"item": "instructions", "digest": "", "decision": "accept"},
    "effects": {"tools": [{"tool": "get_order", "digest": f"sha256:{'0' * 64}", "effects": "read"}]},
}  # fmt: skip
# Routes that name nothing of anybody's: open to all, or answering only from the caller's own tenant (tested below).
WITHOUT_IDS = {
    ("get", "/healthz"), ("get", "/readyz"), ("get", "/v1/calls"), ("get", "/v1/tools"), ("get", "/v1/tools/search"),
    ("get", "/v1/tool-health"), ("get", "/v1/cost"), ("get", "/v1/circuits"),
    ("get", "/v1/surface"), ("get", "/v1/surface/export"),
    ("get", "/v1/switches"), ("post", "/v1/switches"), ("get", "/v1/policies"), ("get", "/v1/policies/usage"),
    ("put", "/v1/policies"), ("post", "/v1/policies/check"), ("post", "/v1/policies/backtest"),
    ("post", "/v1/policies/simulate"),
    ("post", "/v1/tools"), ("get", "/v1/revocations"), ("post", "/v1/revocations"), ("post", "/rpc"),
    ("post", "/v1/erasures"), ("post", "/v1/holds"), ("get", "/v1/holds"),
    ("post", "/v1/calls"), ("post", "/v1/calls/batch"), ("post", "/v1/undo"), ("post", "/v1/undo/plan"),
    ("post", "/v1/undo/requests"), ("get", "/v1/undo/requests"),
    ("get", "/v1/secrets"), ("post", "/v1/secrets"), ("delete", "/v1/secrets"),
    ("get", "/v1/agents"),
    ("get", "/v1/grants"), ("get", "/.well-known/oauth-protected-resource"), ("post", "/oauth/token"),
    ("get", "/.well-known/oauth-protected-resource/mcp"), ("get", "/.well-known/oauth-client"),
    ("get", "/v1/human-tasks"),
    ("get", "/v1/webhooks/key"), ("get", "/v1/webhooks/deadletters"),
    ("get", "/v1/servers"), ("get", "/v1/audit"), ("get", "/v1/audit/tail"), ("get", "/v1/audit/export"),
    ("get", "/v1/observations"), ("get", "/v1/activity"),
    ("get", "/v1/approvals"), ("post", "/v1/approvals/batch"), ("get", "/v1/approvals/suggestions"),
}  # fmt: skip


@cache
def _list_routes() -> list[tuple[str, str]]:
    """From the composed application, so that a new route cannot be forgotten here."""

    def fail_to_open() -> Any:
        raise NotImplementedError

    document = build_api(fail_to_open).rest.openapi()
    return [(verb, path) for path, operations in document["paths"].items() for verb in operations]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def our_call(gateway: HttpGateway) -> str:
    made = await gateway.call(OURS, {"id": 1, "name": "Ana"}, key="ours", token=gateway.token())
    call_id: str = made.json()["call_id"]
    return call_id


def _strip_ids(answer: httpx2.Response, *ids: str) -> tuple[int, str]:
    text = re.sub(r'"(trace_id|call_id|instance|retrieved_at|created_at)":"[^"]*"', "", answer.text)
    for each in ids:
        text = text.replace(each, "ID")
    return answer.status_code, text


# What anybody may ask of a tenant: answered alike whether or not it exists, which test_oauth.py shows.
OPEN = {route for route in _list_routes() if "{tenant}" in route[1] and not route[1].startswith("/log/")}
WITH_IDS = [route for route in _list_routes() if "{" in route[1] and route not in OPEN]


def test_every_route_is_either_tried_below_or_names_nothing() -> None:
    assert {route for route in _list_routes() if "{" not in route[1]} == WITHOUT_IDS
    assert (len(WITH_IDS), len(OPEN)) == (45, 3)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def our_grant(gateway: HttpGateway) -> str:
    lent: str = (await gateway.post_exchange()).json()["grant_id"]
    return lent


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def our_task(gateway: HttpGateway) -> str:
    return (await make_human_task(gateway, "ours-lost"))[1]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def our_delivery(gateway: HttpGateway, our_call: str) -> str:
    """One that was given up, so that it could be tried again."""
    assert gateway.settings.database.url is not None
    db = await asyncpg.connect(gateway.settings.database.url.get_secret_value())
    made = await db.fetchval(
        "insert into deputize.deliveries (tenant, call_id, state, dead_at) values ('dev', $1, 'succeeded', now()) "
        "returning id",
        our_call,
    )
    await db.close()
    return str(made)


@pytest.mark.parametrize("route", WITH_IDS, ids=" ".join)
@pytest.mark.parametrize("scopes", [SCOPES, (*SCOPES, ADMIN)], ids=["caller", "admin"])
async def test_what_belongs_to_another_tenant_answers_like_what_does_not_exist(
    route: tuple[str, str],
    scopes: tuple[str, ...],
    gateway: HttpGateway,
    our_call: str,
    our_grant: str,
    our_task: str,
    our_delivery: str,
) -> None:
    verb, path = route
    token = gateway.other_token(scopes=scopes)
    body = BODIES.get(path.rpartition("/")[2])

    async def send_request(
        call_id: str, tool: str, grant_id: str, task_id: str, delivery_id: str, tenant: str
    ) -> httpx2.Response:
        filled = path.format(
            call_id=call_id,
            name=tool,
            version=VERSION,
            grant_id=grant_id,
            task_id=task_id,
            approval_id=task_id,
            delivery_id=delivery_id,
            erasure_id=call_id,
            hold_id=call_id,
            entry_id=call_id,
            tenant=tenant,
            tile_path="entries/000.p/1",
        )
        headers = {"authorization": f"Bearer {token}"}
        return await gateway.http.request(verb.upper(), filled, headers=headers, json=body if verb == "post" else None)

    ours = (our_call, OURS, our_grant, our_task, our_delivery, "dev")
    theirs = await send_request(*ours)
    nobodys = await send_request(UNKNOWN_CALL, UNKNOWN_TOOL, UNKNOWN_CALL, UNKNOWN_CALL, UNKNOWN_CALL, "nobody")
    assert theirs.status_code >= 400
    assert _strip_ids(theirs, *ours) == _strip_ids(nobodys, UNKNOWN_CALL, UNKNOWN_TOOL)


ONE_READ = '[{"tool_id": "shop.get_user", "version_range": "*"}]'
# Tokens of the same user, or of an agent of the same name: each could not make the call itself, or did not make it.
NARROW_TOKENS: dict[str, dict[str, Any]] = {
    "a token for one tool": {"token": {"tools": {"shop.get_user": "*"}}},
    "a token without the scope": {"token": {"scopes": ()}},
    "an administrator for one tool": {"token": {"tools": {"shop.get_user": "*"}, "scopes": (*SCOPES, ADMIN)}},
    "the agent, from its issuer": {"token": {"agent": "bot"}},
    "a delegation for one tool": {"exchange": {"tools": ONE_READ}},
    "a delegation to read": {"exchange": {"ceiling": "read"}},
    "a delegation without the scope": {"exchange": {"scope": "shop:delete"}},
    "another delegation": {"exchange": {}},
}


@pytest.mark.parametrize("kind", NARROW_TOKENS)
async def test_what_a_token_does_not_cover_answers_like_what_does_not_exist(kind: str, gateway: HttpGateway) -> None:
    """Of the user's own calls, those of their agent, and their delegations."""
    made = await gateway.post_exchange()
    bot, grant_id = made.json()["access_token"], made.json()["grant_id"]
    renamed = {"id": 1, "name": "Ana"}
    calls = [(await gateway.call(OURS, renamed, token=each)).json()["call_id"] for each in (gateway.token(), bot)]
    entries = (await gateway.get(f"/v1/calls/{calls[1]}/audit", token=bot)).json()["entries"]
    ids = [*calls, grant_id, *(each["entry"]["id"] for each in entries)]
    narrow = NARROW_TOKENS[kind]
    token = (
        gateway.token(**narrow["token"]) if "token" in narrow else await gateway.exchange_token(**narrow["exchange"])
    )
    headers = {"authorization": f"Bearer {token}"}
    # A user who lacks a scope still ends what they delegated: that takes nothing but authority away.
    is_whole_user = kind == "a token without the scope"
    for verb, path in WITH_IDS:
        subject = path.partition("}")[0].partition("{")[2]
        if subject not in ("call_id", "entry_id", "grant_id") or (subject == "grant_id" and is_whole_user):
            continue
        body = BODIES.get(path.rpartition("/")[2])
        known = {"call_id": calls, "entry_id": ids[3:], "grant_id": [grant_id]}[subject]
        answers = [
            _strip_ids(
                await gateway.http.request(
                    verb.upper(), path.format(**{subject: each}), headers=headers, json=body if verb == "post" else None
                ),
                each,
            )
            for each in (*known, UNKNOWN_CALL)
        ]
        assert answers[-1][0] == 404, (verb, path)
        assert len(set(answers)) == 1, (verb, path, answers)
    for path in ("/v1/calls", "/v1/audit", "/v1/audit/export", "/v1/approvals"):
        text = (await gateway.get(path, token=token)).text
        assert not any(each in text for each in calls), path
    assert is_whole_user or grant_id not in (await gateway.get("/v1/grants", token=token)).text
    assert (await gateway.call_rpc("calls.get", {"call_id": calls[0]}, token=token))["error"]["message"]
    assert (await gateway.get(f"/v1/calls/{calls[1]}", token=bot)).json()["state"] == "succeeded"
    assert calls[1] in (await gateway.get("/v1/calls", token=bot)).text
    assert {*calls} <= {each["call_id"] for each in (await gateway.get("/v1/calls")).json()["calls"]}


# Not there, and as like the tools that the token shows.
LIKE_OURS = "shop.renabe_user"
EVERY_TOOL_NAME = re.compile(r"shop\.(?!get_user\b)[a-z_]+")
# Reads that need a body, of the tool that the token hides.
READS_WITH_BODY: dict[str, Any] = {
    "/v1/policies/simulate": {"tool": OURS, "caller": {"user": "ana"}, "arguments": {}},
    "/v1/policies/check": {"files": []},
    "/v1/policies/backtest": {"files": []},
}
# Acts on the tool that the token hides, or on all.
ACTS: list[tuple[str, str, Any]] = [
    ("post", "/v1/switches", {"kind": "tool", "value": OURS, "off": True, "reason": "x"}),
    ("post", "/v1/revocations", {"kind": "user", "value": "nobody", "reason": "x"}),
    ("post", f"/v1/tools/{OURS}/versions/{VERSION}/state", {"state": "disabled"}),
    ("put", "/v1/policies", {"files": []}),
    ("put", f"/v1/tools/{OURS}/versions/{VERSION}/deprecation", {}),
    ("delete", f"/v1/tools/{OURS}/versions/{VERSION}/deprecation", None),
]


@pytest.mark.parametrize("scope", [ADMIN, "deputize:operate", "deputize:audit"])
async def test_a_token_for_one_tool_neither_sees_nor_administers_another(
    scope: str, gateway: HttpGateway, our_call: str, our_task: str
) -> None:
    root, limited = gateway.token("root", scopes=[ADMIN]), gateway.token(tools={"shop.get_user": "*"}, scopes=[scope])
    switch = {"kind": "tool", "value": "shop.hidden_user", "reason": "x"}
    assert (await gateway.post("/v1/switches", {**switch, "off": True}, token=root)).status_code == 200
    for verb, path in _list_routes():
        if verb != "get" or path.startswith(("/.well-known", "/log/", "/t/", "/v1/audit/tail")):
            continue
        # A name that is asked for comes back; that it answers like an unknown one is shown below.
        filled = path.format(call_id=our_call, task_id=our_task, approval_id=our_task, entry_id=our_call, name="NAME",
            grant_id=our_call, erasure_id=our_call, version=VERSION)  # fmt: skip
        answer = await gateway.get(filled, token=limited)
        assert answer.status_code < 500, (path, answer.text)
        assert EVERY_TOOL_NAME.findall(answer.text) == [], path
        if "/tools/{name}" in path:
            known, unknown = [await gateway.get(path.format(name=each, version=VERSION), token=limited)
                              for each in (OURS, LIKE_OURS)]  # fmt: skip
            assert _strip_ids(known, OURS) == _strip_ids(unknown, LIKE_OURS), path
    for path, body in READS_WITH_BODY.items():
        answer = await gateway.post(path, body, token=limited)
        assert answer.status_code in (403, 404), (path, answer.text)
        assert EVERY_TOOL_NAME.findall(answer.text.replace(OURS, "")) == [], path
    for verb, path, body in ACTS:
        headers = {"authorization": f"Bearer {limited}"}
        answer = await gateway.http.request(verb.upper(), path, json=body, headers=headers)
        assert answer.status_code == 403, (path, answer.text)
    assert (await gateway.post("/v1/switches", {**switch, "off": False}, token=root)).status_code in (200, 403)


async def test_a_delegation_ends_itself_and_what_it_passed_on_and_no_other(gateway: HttpGateway) -> None:
    own, other = [(await gateway.post_exchange(tools=ONE_READ)).json() for _ in range(2)]
    passed_on = (await gateway.post_exchange(own["access_token"], agent="typist")).json()
    headers = {"authorization": f"Bearer {own['access_token']}"}
    statuses = [
        (await gateway.http.delete(f"/v1/grants/{each['grant_id']}", headers=headers)).status_code
        for each in (other, passed_on, own)
    ]
    assert statuses == [404, 200, 200]


@pytest.mark.parametrize("method", METHODS)
async def test_every_rpc_method_keeps_tenants_apart(method: str, gateway: HttpGateway, our_call: str) -> None:
    token = gateway.other_token(scopes=(*SCOPES, ADMIN))

    def make_params(call_id: str, tool: str) -> dict[str, Any]:
        every: dict[str, dict[str, Any]] = {
            "calls.create": {"tool": tool, "arguments": {"id": 1, "name": "Ana"}, "idempotency_key": "ours"},
            "calls.get": {"call_id": call_id}, "calls.cancel": {"call_id": call_id},
            "calls.retry": {"call_id": call_id},
            "tools.list": {}, "tools.search": {"q": tool}, "tools.get": {"name": tool}, "surface.get": {},
            "tools.negotiate": {"name": tool, "output": {"fields": ["/id"]}},
        }  # fmt: skip
        return every[method]

    answers = []
    for call_id, tool in ((our_call, OURS), (UNKNOWN_CALL, UNKNOWN_TOOL)):
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": make_params(call_id, tool)}
        answers.append(_strip_ids(await gateway.post("/rpc", request, token=token), call_id, tool))
    assert answers[0] == answers[1]
    assert our_call not in answers[0][1]


async def test_lists_and_searches_show_only_ones_own(gateway: HttpGateway, our_call: str) -> None:
    token = gateway.other_token(scopes=(*SCOPES, ADMIN))
    assert (await gateway.get("/v1/calls", token=token)).json() == {"calls": [], "next_before": None}
    assert our_call not in (await gateway.get("/v1/audit", limit=200, token=token)).text
    assert our_call not in (await gateway.get("/v1/audit/export", token=token)).text
    observed = (await gateway.get("/v1/observations", token=token)).json()
    # Attempts of this tenant on the other's tools are its own calls; it has no decision about them.
    assert all(each["refusals"] == each["calls"] for each in observed["uses"])
    assert our_call not in str(observed)
    assert (await gateway.get("/v1/tools", token=token)).json()["tools"] == []
    assert (await gateway.get("/v1/tools/search", q=OURS, token=token)).json()["matches"] == []
    assert (await gateway.get("/v1/surface", token=token)).json()["tools"] == []
    assert (await gateway.get("/v1/surface/export", token=token)).json()["tool_surface"]["tool_refs"] == []


async def test_another_tenants_tool_cannot_be_called(gateway: HttpGateway, our_call: str) -> None:
    token, before = gateway.other_token(), len(shop_tools.effects)
    theirs = await gateway.call(OURS, {"id": 1, "name": "Ana"}, key="ours", token=token)
    nobodys = await gateway.call(UNKNOWN_TOOL, {"id": 1, "name": "Ana"}, key="ours", token=token)
    assert theirs.status_code == 404
    assert _strip_ids(theirs, OURS) == _strip_ids(nobodys, UNKNOWN_TOOL)
    assert len(shop_tools.effects) == before


async def test_the_same_key_in_two_tenants_is_two_keys_and_registering_reaches_one(
    gateway: HttpGateway, our_call: str
) -> None:
    admin = gateway.other_token("otto", scopes=(*SCOPES, ADMIN))
    contract = next(each.contract for each in shop_tools.TOOLS if each.contract.full_name == "shop.hidden_user")
    declared = {**contract.model_dump(mode="json"), "namespace": "store", "name": "look"}
    made = await gateway.post("/v1/tools", declared, token=admin)
    assert made.status_code == 201
    assert (await gateway.call("store.look", {"id": 3}, token=gateway.other_token())).json()["result"] == 3
    assert (await gateway.call("store.look", {"id": 3})).status_code == 404


async def test_revoking_a_subject_reaches_only_ones_own_tenant(gateway: HttpGateway, our_call: str) -> None:
    admin = gateway.other_token("otto", scopes=(*SCOPES, ADMIN))
    revoked = await gateway.post("/v1/revocations", {"kind": "subject", "value": "ana"}, token=admin)
    assert revoked.status_code == 201
    assert (await gateway.get(f"/v1/calls/{our_call}")).status_code == 200
    assert (await gateway.get("/v1/tools", token=gateway.other_token("ana"))).status_code == 401
