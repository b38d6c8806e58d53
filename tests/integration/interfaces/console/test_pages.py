"""Every page of the console for every role and tenant: what each shows, to whom, and that hostile text stays text.

Sessions are sealed by the gateway itself, as after a sign-in; `test_sign_in.py` shows how people get one.
"""

import asyncio
import csv
import io
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
import pytest_asyncio

from deputize.core.caller import ADMIN_SCOPE, AUDIT_SCOPE, OPERATE_SCOPE, UNDO_SCOPE, Caller
from deputize.core.clock import Clock
from deputize.core.errors import ToolPrecondition
from deputize.interfaces.console.app import build_console_app
from proofs.fuzz.console_fuzzer import find_page_fault
from tests.support import notebook_tools
from tests.support.approval_gateway import APPROVAL_POLICIES
from tests.support.chromium import EXECUTABLE, open_tab
from tests.support.console_gateway import Browser, ConsoleGateway, open_console_gateway, visible_text
from tests.support.flows import make_flow_tool
from tests.support.query_count import count_queries
from tests.support.shop_tools import release_events

pytestmark = pytest.mark.requirement("GOV-2")

HOSTILE = "<script>document.title='owned'</script>\u202egpj.exe\u200b=cmd|' /C calc'!A1\" onload=x hx-get=/x"
MAX_QUERIES = 4
UNKNOWN = "01890000-0000-7000-8000-000000000000"
# The tenant, the user and the scopes of each person.
PEOPLE: dict[str, tuple[str, str, frozenset[str]]] = {
    "administrator": ("dev", "root", frozenset({ADMIN_SCOPE, UNDO_SCOPE, "book:write"})),
    "operator": ("dev", "oda", frozenset({OPERATE_SCOPE, UNDO_SCOPE})),
    "auditor": ("dev", "aud", frozenset({AUDIT_SCOPE})),
    "maker": ("dev", "ana", frozenset({UNDO_SCOPE, "book:write", "shop:delete"})),
    "guest": ("dev", "guest", frozenset()),
    "other administrator": ("other", "olaf", frozenset({ADMIN_SCOPE})),
}
# What each page answers to administrator, operator, auditor, maker, guest and the administrator of another tenant.
PAGES: dict[str, tuple[int, int, int, int, int, int]] = {
    "/console": (200, 200, 200, 200, 200, 200),
    "/console/calls": (200, 200, 200, 200, 200, 200),
    "/console/calls/{call_id}": (200, 200, 200, 200, 404, 404),
    "/console/calls/{call_id}/cancel": (200, 200, 403, 200, 404, 404),
    "/console/calls/{call_id}/retry": (404, 404, 404, 200, 404, 404),
    "/console/calls/{call_id}/undo": (200, 200, 200, 200, 404, 404),
    "/console/flows/{flow_id}": (200, 404, 404, 200, 404, 404),
    "/console/audit": (200, 200, 200, 200, 200, 200),
    "/console/audit/{entry_id}": (200, 200, 200, 200, 404, 404),
    "/console/tools": (200, 200, 200, 200, 200, 200),
    "/console/tools/{name}": (200, 200, 200, 200, 200, 404),
    "/console/policies": (200, 200, 200, 403, 403, 200),
    "/console/policies/simulate": (200, 403, 403, 403, 403, 200),
    "/console/policies/backtest": (200, 403, 403, 403, 403, 200),
    "/console/agents": (200, 200, 200, 200, 200, 200),
    "/console/agents/grants/{grant_id}/revoke": (200, 404, 404, 200, 404, 404),
    "/console/approvals": (200, 200, 200, 200, 200, 200),
    "/console/approvals/{approval_id}": (200, 404, 404, 200, 404, 404),
    "/console/servers": (200, 200, 200, 200, 200, 200),
    "/console/servers/{server}/changes": (404, 404, 404, 403, 403, 404),
    "/console/switches": (200, 200, 200, 403, 403, 200),
    "/console/switches/off": (200, 200, 403, 403, 403, 200),
    # Without the name of a switch.
    "/console/switches/on": (400, 400, 403, 403, 403, 400),
    "/console/sign-out": (200, 200, 200, 200, 200, 200),
}
# Open to anyone, answered by a redirect or a stream, or the same for all; each has its own test.
OTHERS = {
    "/", "/console/",
    "/console/search", "/console/calls/live", "/console/sign-in", "/console/sign-in/link", "/console/callback",
    "/console/servers/callback", "/console/audit/export", "/console/errors/{code}",
}  # fmt: skip

# Who may send each form about what ana made: for everyone else it is as if it were not there, or not theirs to send.
FORMS: dict[str, set[str]] = {
    "/console/calls/{call_id}/cancel": {"administrator", "operator", "maker"},
    "/console/calls/{call_id}/retry": {"maker"},
    "/console/calls/{call_id}/undo": {"administrator", "operator", "maker"},
    "/console/agents/grants/{grant_id}/revoke": {"administrator", "maker"},
    "/console/approvals/{approval_id}/approve": set(),
    "/console/approvals/{approval_id}/deny": set(),
    # What is sent there is about the sender's own tenant, code or accounts.
    "/console/approvals/{approval_id}/code": set(),
    "/console/policies/simulate": {"administrator", "other administrator"},
    "/console/policies/backtest": {"administrator", "other administrator"},
    "/console/switches/off": {"administrator", "operator", "other administrator"},
    "/console/switches/on": {"administrator", "operator", "other administrator"},
    "/console/servers/{server}/link": set(),
    "/console/servers/{server}/unlink": set(),
    "/console/sign-out": set(PEOPLE),
}


# Of its steps one reads, one changes something and one fails.
FLOW = make_flow_tool(
    "tidy",
    {"name": "find", "tool": "shop.get_user", "constants": {"id": 7}},
    {"name": "note", "tool": "shop.slow_note", "constants": {"name": "flow"}},
    {"name": "stop", "tool": "shop.fail", "constants": {"slug": "tool-failed"}},
    output={"found": "/steps/find"},
    resources=["create shop.notes/{tag}"],
    auth={"scopes": ["shop:write"]},
)


class World(dict[str, str]):
    """Ids of what ana and her agent made in tenant `dev`."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def console(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConsoleGateway]:
    async with open_console_gateway(
        module_database, tmp_path_factory.mktemp("pages"), codes=True, tools=[FLOW, *notebook_tools.TOOLS]
    ) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(console: ConsoleGateway) -> World:
    gateway = console.gateway
    agent = gateway.token("ana", agent="billing-bot")
    read = (await gateway.call("shop.get_user", {"id": 7}, token=agent, session=HOSTILE)).json()
    call_id, approval_id = await console.request_approval("pages", id=77)
    grant = (await gateway.post_exchange(task=HOSTILE)).json()
    release_events["flow"] = asyncio.Event()
    release_events["flow"].set()
    flow = (await gateway.call("lab.tidy", {"tag": HOSTILE}, key="flow", token=agent)).json()
    await console.wait_for_end(flow["call_id"])
    entries = (await gateway.get("/v1/audit", token=gateway.token("ana"), tool="shop.get_user")).json()["entries"]
    return World(
        call_id=call_id, read_id=read["call_id"], approval_id=approval_id, flow_id=flow["call_id"],
        grant_id=grant["grant_id"], entry_id=entries[0]["id"], name="shop.get_user", server="nowhere",
    )  # fmt: skip


def find_form_token(page: httpx2.Response) -> str:
    return str(re.findall(r'name="form_token" value="(\w+)"', page.text)[-1])


def seal_session(console: ConsoleGateway, role: str, **more: Any) -> str:
    return _seal(console, *PEOPLE[role], role, **more)


def _seal(
    console: ConsoleGateway, tenant: str, user: str, scopes: frozenset[str], name: str, *, is_link: bool = False,
    **more: Any,
) -> str:  # fmt: skip
    assert console.gateway.in_process is not None
    now = Clock().epoch_ms() // 1000
    caller = Caller(
        tenant=tenant, user=user, scopes=scopes, issuer="urn:deputize:development", token_id=f"page {name}",
        expires_at=now + 900, issued_at=now, auth_time=now, human=True, console=not is_link,
        **more,
    )  # fmt: skip
    sessions = console.gateway.in_process.console_access._sessions
    return sessions.seal_link_session(caller) if is_link else sessions.seal_session(caller)


@asynccontextmanager
async def open_as(console: ConsoleGateway, role: str, **more: Any) -> AsyncIterator[Browser]:
    async with console.open_browser() as browser:
        browser.http.cookies.set("deputize-session", seal_session(console, role, **more))
        yield browser


def test_every_page_is_in_the_table() -> None:
    def refuse() -> Any:
        raise NotImplementedError

    routes: list[Any] = list(build_console_app(refuse, asyncio.Event()).routes)
    paths = {each.path for each in routes if "GET" in each.methods and not each.path.endswith((".css", ".js"))}
    assert paths == set(PAGES) | OTHERS
    assert {each.path for each in routes if "POST" in each.methods} == set(FORMS)


@pytest.mark.parametrize("role", PEOPLE)
async def test_each_role_sees_its_own_and_no_other_tenants(console: ConsoleGateway, world: World, role: str) -> None:
    column = list(PEOPLE).index(role)
    secrets = {*world.values()} - {"shop.get_user", "nowhere"} | {"billing-bot"}
    async with open_as(console, role) as browser:
        for path, statuses in PAGES.items():
            page = await browser.get(path.format(**world))
            assert (path, page.status_code) == (path, statuses[column])
            assert (path, find_page_fault(page.content)) == (path, None)
            if role in ("guest", "other administrator"):
                assert (path, [each for each in secrets if each in page.text]) == (path, [])


@pytest.mark.parametrize("role", [*PEOPLE, "nobody"])
async def test_no_one_sends_a_form_that_is_not_theirs(console: ConsoleGateway, world: World, role: str) -> None:
    typed = {
        "reason": "mine now", "binding": "0" * 64, "code": "0000-0000", "kind": "tool", "value": "shop.get_user",
        "tool": "shop.delete_user", "user": "ana", "agents": "", "arguments": "{}", "file": "asking.cedar", "days": "1",
        "text": "permit (principal, action, resource);",
    }  # fmt: skip
    secrets = {*world.values()} - {"shop.get_user", "nowhere"} | {"billing-bot"}
    before = await _describe_world(console, world)
    async with console.open_browser() as browser:
        if role != "nobody":
            browser.http.cookies.set("deputize-session", seal_session(console, role))
            typed["form_token"] = find_form_token(await browser.get("/console/sign-out"))
        for path, roles in FORMS.items():
            if role in roles:
                continue
            answer = await browser.post(path.format(**world), typed)
            assert answer.status_code in (400, 401, 403, 404, 409), (path, answer.status_code)
            # A page may repeat the ids of its own address.
            named = {world[name] for name in re.findall(r"{(\w+)}", path)}
            shown = [each for each in secrets - named if each in answer.text]
            if role not in ("administrator", "maker"):
                assert (path, shown) == (path, [])
    assert await _describe_world(console, world) == before


async def _describe_world(console: ConsoleGateway, world: World) -> tuple[Any, ...]:
    """What forms could change of what ana made, and in her tenant."""
    gateway = console.gateway
    root = gateway.token("root", scopes=[ADMIN_SCOPE])
    call = await console.fetch_call(world["call_id"])
    grant = await gateway.get(f"/v1/grants/{world['grant_id']}")
    approval = await gateway.get(f"/v1/approvals/{world['approval_id']}", token=root)
    switches, policies = await gateway.get("/v1/switches", token=root), await gateway.get("/v1/policies", token=root)
    return call["state"], grant.json()["state"], approval.json(), switches.json(), policies.json()["digest"]


async def test_live_rows_come_to_those_who_may_see_their_calls_only(console: ConsoleGateway, world: World) -> None:
    gateway = console.gateway
    seen: dict[str, set[str]] = {}
    async with AsyncExitStack() as stack, asyncio.timeout(90):
        feeds = {}
        for role in PEOPLE:
            browser = await stack.enter_async_context(open_as(console, role))
            feed = await stack.enter_async_context(browser.http.stream("GET", "/console/calls/live"))
            feeds[role] = feed.aiter_lines()
            await anext(feeds[role])
        made = {
            "maker": await gateway.call("shop.get_user", {"id": 5}),
            "guest": await gateway.call("shop.get_user", {"id": 5}, token=gateway.token("guest")),
            "other": await gateway.call("shop.get_user", {"id": 5}, token=gateway.token("olaf", tenant="other")),
        }
        calls = {name: answer.json()["call_id"] for name, answer in made.items()}
        # The last call that each of them sees; an auditor has none of their own, and nor has an administrator.
        last = {"guest": "guest", "other administrator": "other", "maker": "maker"}
        for role, lines in feeds.items():
            text = ""
            while calls[last.get(role, "guest")] not in text:
                text += await anext(lines)
            seen[role] = {name for name, call_id in calls.items() if call_id in text}
    assert seen == {
        "administrator": {"maker", "guest"}, "operator": {"maker", "guest"}, "auditor": {"maker", "guest"},
        "maker": {"maker"}, "guest": {"guest"}, "other administrator": {"other"},
    }  # fmt: skip


async def test_a_page_of_another_tenant_reads_like_one_that_is_not_there(console: ConsoleGateway, world: World) -> None:
    async with open_as(console, "other administrator") as browser:
        for path in (each for each in PAGES if "{" in each):
            theirs = await browser.get(path.format(**world))
            nowhere = await browser.get(
                path.format(**dict.fromkeys(world, UNKNOWN) | {"name": "shop.x", "server": "x"})
            )
            assert (path, theirs.status_code) == (path, nowhere.status_code)


async def test_whoever_is_not_signed_in_is_sent_there_and_comes_back(console: ConsoleGateway, world: World) -> None:
    async with console.open_browser() as browser:
        for path in (*PAGES, "/console/search", "/console/calls/live", "/console/audit/export"):
            if path.startswith("/console/approvals/"):
                # There, a code from the terminal opens the request.
                continue
            page = await browser.get(path.format(**world))
            assert (path, page.status_code) == (path, 303)
            assert page.headers["location"].startswith("/console/sign-in?to=%2Fconsole")
        root = await browser.get("/")
        assert (root.status_code, root.headers["location"]) == (303, "/console")


async def test_pages_with_forms_run_no_script_and_pages_with_a_script_hold_no_form_token(
    console: ConsoleGateway, world: World
) -> None:
    async with open_as(console, "administrator") as browser:
        for path, statuses in PAGES.items():
            page = await browser.get(path.format(**world))
            if statuses[0] != 200:
                continue
            policy = page.headers["content-security-policy"]
            nonce = re.search(r'nonce="([^"]+)"', page.text)
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert (path, nonce is None) == (path, "form_token" in page.text)
            if nonce is not None:
                assert f"script-src 'nonce-{nonce[1]}'; connect-src {console.url}/console/calls/live" in policy
            else:
                assert "script-src" not in policy


@pytest.mark.skipif(EXECUTABLE is None, reason="chromium is not installed")
async def test_every_page_fits_on_a_phone_and_does_nothing_that_its_own_policy_forbids(
    console: ConsoleGateway, world: World, tmp_path: Path
) -> None:
    async with open_tab(tmp_path) as tab:
        await tab.resize(390)
        await tab.open_url(f"{console.url}/console/sign-in")
        await tab.evaluate(f"document.cookie = 'deputize-session={seal_session(console, 'administrator')}; path=/'")
        for path in (each for each, statuses in PAGES.items() if statuses[0] == 200):
            await tab.open_url(console.url + path.format(**world))
            assert (path, await tab.evaluate("document.documentElement.scrollWidth")) == (path, 390)
            assert "owned" not in await tab.evaluate("document.title")
        assert tab.complaints == []


async def test_whoever_opened_the_link_of_the_terminal_sees_every_page(console: ConsoleGateway, world: World) -> None:
    async with console.open_browser() as browser:
        session = _seal(console, *PEOPLE["administrator"], "link", is_link=True)
        browser.http.cookies.set("deputize-session", session)
        statuses = {path: (await browser.get(path.format(**world))).status_code for path in PAGES}
    assert statuses == {path: expected[0] for path, expected in PAGES.items()}


@pytest.mark.parametrize("role", ["administrator", "maker"])
async def test_no_page_makes_more_than_four_queries(console: ConsoleGateway, world: World, role: str) -> None:
    assert console.gateway.in_process is not None
    store = console.gateway.in_process._lifecycle.runtime.store
    more = (
        "/console/calls?agent=billing-bot&tool=shop.get_user",
        f"/console/calls?before={UNKNOWN}",
        "/console/tools?q=user",
    )
    # Decisions that were refused are no calls: they are on no list of calls, and cost none a query.
    for _ in range(20):
        headers = {"authorization": f"Bearer {console.gateway.token()}", "deputize-code": "0000-0000"}
        path = f"/v1/approvals/{world['approval_id']}/approve"
        assert (await console.gateway.http.post(path, json={"binding": "0" * 64}, headers=headers)).status_code == 403
    made: dict[str, list[str]] = {}
    async with open_as(console, role) as browser, count_queries(store, of_requests=True) as names:
        for path in (*(each for each, statuses in PAGES.items() if statuses[0] == 200), *more):
            # What a process keeps it reads once, and live feeds of other tests may still be read beside a page.
            tries = []
            for _ in range(4):
                names.clear()
                page = await browser.get(path.format(**world))
                assert page.status_code in (200, 403)
                tries.append(names.copy())
            made[path] = min(tries, key=len)
    assert {path: each for path, each in made.items() if len(each) > MAX_QUERIES} == {}


async def test_a_call_says_why_by_which_rule_and_what_is_recorded(console: ConsoleGateway, world: World) -> None:
    async with open_as(console, "administrator") as browser:
        text = visible_text(await browser.get(f"/console/calls/{world['call_id']}"))
        assert "billing-bot on behalf of ana" in text
        for said in ("shop.delete_user", "billing-bot", "ana", "deleting-asks", "asking.cedar:", "waits for approval"):
            assert said in text
        page = await browser.get(f"/console/calls/{world['read_id']}")
        assert '<svg class="waterfall"' in page.text
        assert r"\u202egpj.exe\u200b" in page.text


async def test_a_flow_shows_its_graph_its_steps_with_their_calls_and_what_it_left(
    console: ConsoleGateway, world: World
) -> None:
    async with open_as(console, "administrator") as browser:
        page = await browser.get(f"/console/flows/{world['flow_id']}")
        assert '<svg xmlns="http://www.w3.org/2000/svg" class="flow" role="img"' in page.text
        assert "style=" not in page.text
        left, _, steps = visible_text(page).partition("Graph")
        assert "note shop.rename_user needs id, and the contract binds nothing to it" in left
        # A read leaves nothing.
        assert "find ✓ succeeded" not in left
        assert "stop shop.fail ✕ failed stop ✕ failed ended in tool-failed as asked" in steps
        call = await browser.get(f"/console/calls/{world['flow_id']}")
        assert f'/console/flows/{world["flow_id"]}">Steps of the flow' in call.text
        step = re.search(r'href="(/console/calls/[^"]+)"><bdi>note', page.text)
        assert step is not None
        made = (await browser.get(step[1])).text
        assert f'/console/calls/{world["flow_id"]}">the call that made it' in made
        assert f'/console/flows/{world["flow_id"]}">all its steps' in made
        assert (await browser.get(f"/console/flows/{world['call_id']}")).status_code == 400


async def test_home_says_what_waits_for_whom_and_what_the_last_hour_brought(
    console: ConsoleGateway, world: World
) -> None:
    assert (await console.gateway.call("shop.no_such")).status_code == 404
    token = console.gateway.token("root", scopes=[ADMIN_SCOPE])
    report = (await console.gateway.get("/v1/activity", token=token)).json()
    refused = await console.gateway.get("/v1/audit", token=token, decision="deny", limit=200)
    assert sum(each["refusals"] for each in report["minutes"]) == len(refused.json()["entries"])
    assert report["has_all_refusals"]
    for role, waits in (("administrator", True), ("auditor", False), ("guest", False), ("other administrator", False)):
        async with open_as(console, role) as browser:
            page = await browser.get("/console")
            assert (role, "shop.delete_user waits for approval" in page.text) == (role, waits)
            assert (role, f"/console/approvals/{world['approval_id']}" in page.text) == (role, waits)
            assert (role, "Refusals" in page.text) == (role, role not in ("maker", "guest"))
    async with open_as(console, "guest", groups=frozenset({"oncall"})) as browser:
        assert "shop.delete_user waits for approval" in (await browser.get("/console")).text


async def test_a_dry_run_is_one_in_every_list_and_an_agent_that_is_off_is_shown_so(
    console: ConsoleGateway, world: World
) -> None:
    gateway, admin = console.gateway, console.gateway.token("root", scopes=[ADMIN_SCOPE])
    dry = await gateway.call("shop.delete_user", {"id": 91}, dry_run=True)
    call_id = dry.json()["call_id"]
    async with open_as(console, "administrator") as browser:
        for path in ("/console", "/console/calls", f"/console/calls/{call_id}"):
            text = visible_text(await browser.get(path))
            assert "◌ dry run" in text, path
        switch = {"kind": "agent", "value": "billing-bot", "off": True, "reason": "it books twice"}
        assert (await gateway.post("/v1/switches", switch, token=admin)).status_code == 200
        page = await browser.get("/console/agents")
        assert "switched off by root" in visible_text(page)
        assert "it books twice" in visible_text(page)
        assert "/console/switches/on?kind=agent&amp;value=billing-bot" in page.text
        refused = await gateway.call("shop.get_user", {"id": 7}, token=gateway.token("ana", agent="billing-bot"))
        text = visible_text(await browser.get(f"/console/calls/{refused.json()['call_id']}"))
        assert "What went wrong root turned off the agent billing-bot: it books twice" in text
        assert (await gateway.post("/v1/switches", {**switch, "off": False}, token=admin)).status_code == 200


async def test_the_page_of_a_call_says_first_why_it_ended_so_and_what_came_back(
    console: ConsoleGateway, world: World
) -> None:
    gateway, token = console.gateway, console.gateway.token("ana", scopes=["book:write"])
    wrote = (await gateway.call("book.add", {"name": "shown", "text": "milk"}, key="came", token=token)).json()
    notebook_tools.failures["shown"] = ToolPrecondition("the shelf 5 is empty today")
    failed = (await gateway.call("book.remove", {"name": "shown"}, key="why", token=token)).json()
    assert (wrote["state"], failed["state"]) == ("succeeded", "failed"), (wrote, failed)
    code = failed["error"]["number"]
    for role, may_read in (("maker", True), ("administrator", True), ("auditor", False)):
        async with open_as(console, role) as browser:
            page = await browser.get(f"/console/calls/{failed['call_id']}")
            assert (role, "the shelf 5 is empty today" in visible_text(page)) == (role, may_read)
            assert f'href="/console/errors/{code}"' in page.text
            assert failed["title"] in visible_text(page)
            # Its error proves that nothing happened.
            assert "Undo…" not in page.text
            result = await browser.get(f"/console/calls/{wrote['call_id']}")
            assert (role, "What came back" in visible_text(result)) == (role, True)
            assert (role, "as its caller got it" in visible_text(result)) == (role, may_read)
            assert "Undo…" in result.text
    read = (await gateway.call("shop.fail", {"slug": "tool-failed"})).json()
    shown = (await gateway.get(f"/v1/calls/{read['call_id']}")).json()
    assert (shown["state"], shown["error"]["message"]) == ("failed", "ended in tool-failed as asked")
    for role, may_read in (("maker", True), ("administrator", True), ("auditor", False)):
        async with open_as(console, role) as browser:
            text = visible_text(await browser.get(f"/console/calls/{read['call_id']}"))
            assert (role, "ended in tool-failed as asked" in text) == (role, may_read)
            # Its arguments are not stored, so it cannot be made again.
            assert "Retry…" not in text
    async with open_as(console, "guest") as browser:
        page = await browser.get(f"/console/errors/{code}")
        assert failed["title"] in visible_text(page)
        assert failed["error"]["advice"][:20] in visible_text(page)
        assert (await browser.get("/console/errors/E9999")).status_code == 404


async def test_the_page_of_a_call_shows_its_arguments_where_they_are_kept_to_whom_may_see_them(
    console: ConsoleGateway, world: World
) -> None:
    for role, may_read in (("maker", True), ("administrator", True), ("operator", False), ("auditor", False)):
        async with open_as(console, role) as browser:
            page = await browser.get(f"/console/calls/{world['call_id']}")
            assert (role, "as approvers see them" in page.text) == (role, may_read)
            assert (role, "<dt><bdi>id</bdi></dt>" in page.text) == (role, may_read)
            read = visible_text(await browser.get(f"/console/calls/{world['read_id']}"))
            assert "They were not kept" in read
    groups = frozenset({"oncall"})
    for role, more, may_read in (
        ("administrator", {}, True),
        ("guest", {"groups": groups}, True),
        ("guest", {}, False),
    ):
        async with open_as(console, role, **more) as browser:
            listed = await browser.get("/console/approvals")
            assert (role, "<bdi>id=77</bdi>" in listed.text) == (role, may_read)
    gateway = console.gateway
    queued = (await gateway.call("shop.login", {"password": "hunter2"}, key="login", mode="async")).json()
    await console.wait_for_end(queued["call_id"])
    async with open_as(console, "maker") as browser:
        page = await browser.get(f"/console/calls/{queued['call_id']}")
        assert "<dt><bdi>password</bdi></dt>" in page.text
        assert "hunter2" not in page.text


async def test_filters_stand_in_the_address_and_what_was_typed_is_kept(console: ConsoleGateway, world: World) -> None:
    async with open_as(console, "administrator") as browser:
        found = await browser.get("/console/calls?tool=shop.get_user&agent=billing-bot")
        assert world["read_id"] in found.text
        assert world["call_id"] not in found.text
        assert 'name="tool" value="shop.get_user"' in found.text
        wrong = await browser.get("/console/calls?from=yesterday&tool=shop.get_user")
        assert wrong.status_code == 400
        assert "must be a time as in" in visible_text(wrong)
        assert 'value="yesterday"' in wrong.text
        assert "Nothing matches" in visible_text(await browser.get("/console/calls?tool=no.such_tool"))
        acts = visible_text(await browser.get("/console/audit?kind=command"))
        assert "search_audit" in acts
        assert "search_audit" not in visible_text(await browser.get("/console/calls"))


async def test_the_audit_is_exported_with_the_filters_of_the_page(console: ConsoleGateway, world: World) -> None:
    async with open_as(console, "administrator") as browser:
        page = await browser.get("/console/audit?tool=shop.get_user&agent=billing-bot")
        paths = re.findall(r'href="([^"]+)" download', page.text)
        assert [each.rpartition("=")[2] for each in paths] == ["csv", "jsonl"]
        table, lines = [await browser.get(unescape(each)) for each in paths]
        assert table.headers["content-disposition"] == 'attachment; filename="audit.csv"'
        assert table.headers["x-content-type-options"] == "nosniff"
        rows = list(csv.DictReader(io.StringIO(table.text)))
        assert {row["tool"] for row in rows} == {"shop.get_user"}
        assert world["read_id"] in {row["call"] for row in rows}
        assert [each["id"] for each in map(orjson.loads, lines.text.splitlines())] == [row["id"] for row in rows]
        assert "download" not in (await browser.get("/console/audit?from=yesterday")).text
        for wrong in ("format=xlsx", "format=csv&from=yesterday"):
            assert (await browser.get(f"/console/audit/export?{wrong}")).status_code == 400
    for role in ("guest", "other administrator"):
        async with open_as(console, role) as browser:
            exported = await browser.get("/console/audit/export?format=jsonl&agent=billing-bot")
            assert (exported.status_code, exported.text) == (200, "")


async def test_a_look_at_the_same_entries_is_recorded_once_in_a_minute_and_other_ones_at_once(
    console: ConsoleGateway, world: World
) -> None:
    gateway, admin = console.gateway, console.gateway.token("root", scopes=[ADMIN_SCOPE])

    async def list_looks() -> list[str]:
        page = (await gateway.get("/v1/audit", token=admin, limit=200)).json()["entries"]
        looks = [each["entry"] for each in page if each["user"] == "aud"]
        return [f"{each['command']} {each['subject']}" for each in looks if each.get("command", "").endswith("_audit")]

    async with open_as(console, "auditor", groups=frozenset({"looks"})) as browser:
        await browser.get("/console/calls?tool=shop.login")
        once = await list_looks()
        assert len([each for each in once if "tool=shop.login" in each]) == 1
        for _ in range(3):
            await browser.get("/console/calls?tool=shop.login")
        assert await list_looks() == once
        await browser.get("/console/calls?tool=shop.fail")
        await browser.get(f"/console/calls?tool=shop.fail&before={UNKNOWN}")
        assert len(await list_looks()) == len(once) + 2
    for _ in range(2):
        assert (await gateway.get("/v1/audit", token=admin, tool="shop.login")).status_code == 200
    page = (await gateway.get("/v1/audit", token=admin, limit=200)).json()["entries"]
    searches = [each["entry"]["subject"] for each in page if each["entry"].get("command") == "search_audit"]
    assert searches.count("tool=shop.login") == 2


async def test_older_pages_follow_without_a_gap(console: ConsoleGateway, world: World) -> None:
    token = console.gateway.token("ana")
    ids = [
        (await console.gateway.call("shop.get_user", {"id": 5}, token=token, session="pages")).json()["call_id"]
        for _ in range(55)
    ]
    async with open_as(console, "maker") as browser:
        first = await browser.get("/console/calls?session=pages")
        older = re.search(r'href="([^"]+before=[^"]+)">Older', first.text)
        assert older is not None
        second = await browser.get(older[1].replace("&amp;", "&"))
    assert [each for each in ids if each not in first.text + second.text] == []


async def test_a_call_is_on_the_page_of_its_newest_entry_only(console: ConsoleGateway, world: World) -> None:
    token = console.gateway.token("ana")
    release_events.setdefault("paged", asyncio.Event()).set()
    for _ in range(30):
        answer = await console.gateway.call("shop.slow_note", {"name": "paged"}, token=token, session="writes")
        assert answer.status_code == 200, answer.text
    # So that the intent of a call is the first entry of the second page.
    await console.gateway.call("shop.get_user", {"id": 5}, token=token, session="writes")
    async with open_as(console, "maker") as browser:
        first = await browser.get("/console/calls?session=writes")
        older = re.search(r'href="([^"]+before=[^"]+)">Older', first.text)
        assert older is not None
        second = await browser.get(older[1].replace("&amp;", "&"))
    keys = [re.findall(r'data-key="([^"]+)"', each.text) for each in (first, second)]
    assert [len(each) for each in keys] == [26, 5]
    assert set(keys[0]) & set(keys[1]) == set()


async def test_rows_come_live(console: ConsoleGateway, world: World) -> None:
    async with (
        open_as(console, "maker") as browser,
        asyncio.timeout(60),
        browser.http.stream("GET", "/console/calls/live?session=live") as feed,
    ):
        assert feed.headers["content-type"].startswith("text/event-stream")
        lines = feed.aiter_lines()
        await anext(lines)
        token = console.gateway.token("ana")
        made = (await console.gateway.call("shop.get_user", {"id": 6}, token=token, session="live")).json()
        async for line in lines:
            if line.startswith("data: "):
                assert f'<tr data-key="{made["call_id"]}">' in line
                break


async def test_calls_made_before_a_feed_is_open_come_in_it_too(console: ConsoleGateway, world: World) -> None:
    """Between a page and its feed, and while a feed without any row yet connects again."""
    async with open_as(console, "maker") as browser, asyncio.timeout(60):
        pages = [await browser.get(path) for path in ("/console/calls?session=between", "/console")]
        token = console.gateway.token("ana")
        made = (await console.gateway.call("shop.get_user", {"id": 6}, token=token, session="between")).json()
        for page in pages:
            path = re.search(r'data-live="([^"]+)"', page.text)
            assert path is not None
            async with browser.http.stream("GET", unescape(path[1])) as feed:
                async for line in feed.aiter_lines():
                    if f'<tr data-key="{made["call_id"]}">' in line:
                        break


async def test_a_call_is_canceled_and_a_grant_revoked_only_by_their_own_forms(
    console: ConsoleGateway, world: World
) -> None:
    call_id, _ = await console.request_approval("to-cancel", id=78)
    grant_id = (await console.gateway.post_exchange()).json()["grant_id"]
    async with open_as(console, "maker") as browser:
        for path, after in (
            (f"/console/calls/{call_id}/cancel", f"/console/calls/{call_id}"),
            (f"/console/agents/grants/{grant_id}/revoke", "/console/agents"),
        ):
            token = re.findall(r'name="form_token" value="(\w+)"', (await browser.get(path)).text)[-1]
            form = {"form_token": token, "reason": "no longer needed"} if "grants" in path else {"form_token": token}
            assert (await browser.post(path, {**form, "form_token": "wrong"})).status_code == 403
            assert (await browser.post(path, form, origin="https://evil.example")).status_code == 403
            assert (await browser.post(path, form, sec_fetch_mode="cors")).status_code == 403
            done = await browser.post(path, form, sec_fetch_mode="navigate")
            assert (done.status_code, done.headers.get("location")) == (303, after)
    assert (await console.fetch_call(call_id))["state"] == "canceled"
    shown = await console.gateway.get(f"/v1/grants/{grant_id}")
    assert shown.json()["state"] == "revoked"


async def test_a_page_of_a_call_that_goes_on_may_read_itself_and_no_page_reloads_under_its_reader(
    console: ConsoleGateway, world: World
) -> None:
    async with open_as(console, "administrator") as browser:
        waiting, ended = [await browser.get(f"/console/calls/{world[name]}") for name in ("call_id", "read_id")]
        live = f"connect-src {console.url}/console/calls/live"
        own = f"{live} {console.url}/console/calls/{world['call_id']}"
        assert waiting.headers["content-security-policy"].endswith(own)
        assert "data-follow" in waiting.text
        assert ended.headers["content-security-policy"].endswith(live)
        assert "data-follow" not in ended.text
        # Without a script it is loaded again.
        assert '<noscript><meta http-equiv="refresh"' in waiting.text


async def test_an_operator_cancels_calls_of_others_and_changes_no_more_than_that(
    console: ConsoleGateway, world: World
) -> None:
    call_id, _ = await console.request_approval("operated", id=80)
    path = f"/console/calls/{call_id}"
    async with open_as(console, "auditor") as browser:
        page = await browser.get(path)
        assert "deleting-asks" in visible_text(page)
        assert f"{path}/cancel" not in page.text
        form = {"form_token": find_form_token(await browser.get("/console/sign-out"))}
        assert (await browser.post(f"{path}/cancel", form)).status_code == 403
        assert "Revoke…" not in visible_text(await browser.get("/console/agents"))
        assert "billing-bot" in visible_text(await browser.get("/console/agents"))
        assert (await browser.post("/console/switches/off", {**form, "kind": "tenant"})).status_code == 403
    async with open_as(console, "operator") as browser:
        assert "operator" in (await browser.get("/console")).text
        assert f"{path}/cancel" in (await browser.get(path)).text
        form = {"form_token": find_form_token(await browser.get(f"{path}/cancel"))}
        assert (await browser.post(f"{path}/cancel", form)).status_code == 303
        grant = f"/console/agents/grants/{world['grant_id']}/revoke"
        assert (await browser.post(grant, form)).status_code == 404
        switch = {**form, "kind": "agent", "value": "nobody"}
        asked = await browser.post("/console/switches/off", switch)
        assert (asked.status_code, "no agent nobody has acted here" in visible_text(asked).lower()) == (404, True)
        assert (await browser.post("/console/switches/off", {**switch, "unknown": "1"})).status_code == 303
    assert (await console.fetch_call(call_id))["state"] == "canceled"
    async with open_as(console, "operator", operator=True) as browser:
        on = await browser.get("/console/switches/on?kind=agent&value=nobody")
        turned = {"form_token": find_form_token(on), "kind": "agent", "value": "nobody"}
        assert (await browser.post("/console/switches/on", turned)).status_code == 303


async def test_a_call_is_retried_by_its_maker_and_only_where_that_does_nothing_twice(
    console: ConsoleGateway, world: World
) -> None:
    call_id, _ = await console.request_approval("retried", id=81)
    path = f"/console/calls/{call_id}"
    async with open_as(console, "maker") as browser, open_as(console, "administrator") as other:
        form = {"form_token": find_form_token(await browser.get(f"{path}/retry"))}
        refused = await browser.post(f"{path}/retry", form)
        assert refused.status_code == 409
        assert "it has not ended yet" in visible_text(refused)
        assert (await browser.post(f"{path}/cancel", form)).status_code == 303
        assert f"{path}/retry" in (await browser.get(path)).text
        assert (await browser.post(f"{path}/retry", form, origin="https://evil.example")).status_code == 403
        assert (await browser.post(f"{path}/retry", form, sec_fetch_mode="cors")).status_code == 403
        assert (await browser.post(f"{path}/retry", {"form_token": "wrong"})).status_code == 403
        theirs = {"form_token": find_form_token(await other.get("/console/sign-out"))}
        assert (await other.post(f"{path}/retry", theirs)).status_code == 404
        assert f"{path}/retry" not in (await other.get(path)).text
    # A session has the scopes of its person and no others.
    async with console.open_browser() as browser:
        tenant, user, _ = PEOPLE["maker"]
        browser.http.cookies.set("deputize-session", _seal(console, tenant, user, frozenset(), "bare"))
        bare = {"form_token": find_form_token(await browser.get(f"{path}/retry"))}
        landed = await browser.post(f"{path}/retry", bare)
        assert landed.status_code == 303
        assert "required scope is missing" in visible_text(await browser.get(landed.headers["location"]))
    async with open_as(console, "maker") as browser:
        form = {"form_token": find_form_token(await browser.get(f"{path}/retry"))}
        first, again = [await browser.post(f"{path}/retry", form, sec_fetch_mode="navigate") for _ in range(2)]
        assert first.status_code == 303
        assert first.headers["location"] == again.headers["location"] != path
        made = visible_text(await browser.get(first.headers["location"]))
        assert "waits for approval" in made
        assert "shop.delete_user" in made


async def test_an_undo_shows_its_plan_first_and_does_exactly_that(console: ConsoleGateway, world: World) -> None:
    notebook_tools.notes.clear()
    token = console.gateway.token("ana", agent="billing-bot", scopes=("book:write",))

    async def write(tool: str, key: str, **arguments: str) -> str:
        answer = await console.gateway.call(f"book.{tool}", arguments, key=key, token=token)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["call_id"])

    call_id = await write("add", "undone", name="page", text="milk")
    path = f"/console/calls/{call_id}"
    async with open_as(console, "maker") as browser, open_as(console, "operator") as other:
        assert f"{path}/undo" in (await browser.get(path)).text
        plan = await browser.get(f"{path}/undo")
        text = visible_text(plan)
        for said in (
            "is taken back by book.remove",
            "book.add",
            "create book.notes/page",
            "billing-bot",
            'name "page" returned by the call of billing-bot',
            "Undo 1 call",
        ):
            assert said in text
        digest = re.search(r'name="digest" value="(\w+)"', plan.text)
        assert digest is not None
        form = {"form_token": find_form_token(plan), "digest": digest[1]}
        seen = await other.get(f"{path}/undo")
        assert "is not yours: an administrator can undo it" in visible_text(seen)
        assert "Undo 1 call" not in visible_text(seen)
        theirs = {**form, "form_token": find_form_token(await other.get("/console/sign-out"))}
        assert (await other.post(f"{path}/undo", theirs)).status_code == 409
        assert (await browser.post(f"{path}/undo", {**form, "form_token": "wrong"})).status_code == 403
        assert (await browser.post(f"{path}/undo", form, origin="https://evil.example")).status_code == 403
        changed = await browser.post(f"{path}/undo", {**form, "digest": "00"})
        assert changed.status_code == 409
        assert "Undo 1 call" in visible_text(changed)
        assert notebook_tools.notes == {"page": "milk"}
        done = await browser.post(f"{path}/undo", form, sec_fetch_mode="navigate")
        assert done.status_code == 200
        assert find_page_fault(done.content) is None
        assert "✓ succeeded book.remove took back a call" in visible_text(done)
        assert "taken back already" in visible_text(done)
        assert notebook_tools.notes == {}
        mailed = await write("mail", "mailed", name="page")
        stays = visible_text(await browser.get(f"/console/calls/{mailed}/undo"))
        assert "stays: cannot be undone" in stays
        assert "Undo 1 call" not in stays
        read = await browser.get(f"/console/calls/{world['read_id']}/undo")
        assert "changed nothing that can be taken back" in visible_text(read)


async def test_an_undo_never_overwrites_what_others_changed_since(console: ConsoleGateway, world: World) -> None:
    notebook_tools.notes.clear()
    agent = console.gateway.token("ana", agent="billing-bot", scopes=("book:write",))
    zoe = console.gateway.token("zoe", scopes=("book:write",))
    added = await console.gateway.call("book.add", {"name": "both", "text": "a"}, key="both-1", token=agent)
    later = await console.gateway.call("book.change", {"name": "both", "text": "b"}, key="both-2", token=zoe)
    assert (added.status_code, later.status_code) == (200, 200)
    async with open_as(console, "maker") as browser:
        text = visible_text(await browser.get(f"/console/calls/{added.json()['call_id']}/undo"))
        assert "stays: changed by others since" in text
        assert "Undo 1 call" not in text


async def test_the_policies_say_how_many_calls_each_rule_decided(console: ConsoleGateway, world: World) -> None:
    auditor = console.gateway.token("eve", scopes=[AUDIT_SCOPE])
    before = (await console.gateway.get("/v1/policies/usage", token=auditor)).json()
    await console.request_approval("counted", id=90)
    after = (await console.gateway.get("/v1/policies/usage", token=auditor)).json()
    assert [each["id"] for each in after["rules"]] == ["open", "deleting-asks", "renaming-asks-two"]
    # A call has several entries, and counts once; that of another tenant counts nowhere here.
    await console.gateway.call("shop.get_user", {"id": 1}, token=console.gateway.other_token("zoe"))
    assert after["rules"][1]["calls"] == before["rules"][1]["calls"] + 1
    assert after["rules"][2]["calls"] == 0
    assert after["calls"] == before["calls"] + 1
    assert after["is_complete"]
    assert (await console.gateway.get("/v1/policies/usage")).status_code == 403
    async with open_as(console, "auditor") as browser:
        page = visible_text(await browser.get("/console/policies"))
        assert f"deleting-asks ● asks oncall leads {after['rules'][1]['calls']} " in page
        assert "in the last day" in page
        assert "Simulate a call" not in page


async def test_a_simulated_call_is_decided_with_its_rules_and_what_was_typed_is_kept(
    console: ConsoleGateway, world: World
) -> None:
    path = "/console/policies/simulate"
    async with open_as(console, "administrator") as browser, open_as(console, "maker") as maker:
        page = await browser.get(f"{path}?tool=shop.delete_user")
        assert 'value="shop.delete_user"' in page.text
        form = {
            "form_token": find_form_token(page), "tool": "shop.delete_user", "user": "ana", "agents": "billing-bot",
            "arguments": '{"id": 7}',
        }  # fmt: skip
        theirs = {**form, "form_token": find_form_token(await maker.get("/console/sign-out"))}
        assert (await maker.post(path, theirs)).status_code == 403
        assert (await browser.post(path, form, origin="https://evil.example")).status_code == 403
        asked = visible_text(await browser.post(path, form))
        for said in ("ask shop.delete_user", "deleting-asks asking.cedar:", "Somebody looks", "oncall , leads"):
            assert said in asked
        allowed = visible_text(await browser.post(path, {**form, "tool": "shop.get_user"}))
        assert "allow shop.get_user 1.2.0" in allowed
        for wrong, status, said in (
            ({"arguments": HOSTILE}, 400, "no JSON"),
            ({"arguments": "[]"}, 400, "must be a JSON object"),
            ({"arguments": '{"id": "x"}'}, 400, "do not match shop.delete_user"),
            ({"tool": "shop.delete_usr"}, 404, "shop.delete_usr"),
            ({"user": ""}, 400, "user is missing"),
        ):
            refused = await browser.post(path, {**form, **wrong})
            assert (wrong, refused.status_code) == (wrong, status)
            assert said in visible_text(refused)
            assert 'value="billing-bot"' in refused.text
            assert find_page_fault(refused.content) is None
    assert (await console.fetch_call(world["call_id"]))["state"] == "awaiting_approval"


async def test_a_draft_is_backtested_and_what_was_typed_is_kept(console: ConsoleGateway, world: World) -> None:
    path = "/console/policies/backtest"
    async with open_as(console, "administrator") as browser, open_as(console, "maker") as maker:
        page = await browser.get(path)
        assert "deleting-asks" in page.text
        # A link may carry a draft, which is only shown.
        assert "drafted &amp; shown" in (await browser.get(f"{path}?file=new.cedar&text=drafted%20%26%20shown")).text
        form = {"form_token": find_form_token(page), "file": "asking.cedar", "days": "1"}
        stricter = {**form, "text": '@id("shut")\r\nforbid (principal, action, resource);\r\n'}
        theirs = {**stricter, "form_token": find_form_token(await maker.get("/console/sign-out"))}
        assert (await maker.post(path, theirs)).status_code == 403
        assert (await browser.post(path, stricter, origin="https://evil.example")).status_code == 403
        told = await browser.post(path, stricter)
        assert told.status_code == 200
        text = visible_text(told)
        assert "0 looser" in text
        assert "shop.get_user billing-bot for ana ✓ allow open (asking.cedar:2) ⊘ deny shut (asking.cedar:1)" in text
        assert "/console/calls/" in told.text
        assert "&#34;shut&#34;" in told.text
        same = {**form, "text": APPROVAL_POLICIES}
        assert "None of" in visible_text(await browser.post(path, same))
        wrong = await browser.post(path, {**form, "text": f"permit {HOSTILE}"})
        assert wrong.status_code == 422
        assert find_page_fault(wrong.content) is None
        assert "asking.cedar:1" in visible_text(wrong)
        assert "&lt;script&gt;document.title" in wrong.text
        assert (await browser.post(path, {**stricter, "days": "1000"})).status_code == 400
        # An added file leaves the others as they are.
        added = {**stricter, "file": "more.cedar", "text": '@id("also")\nforbid (principal, action, resource);\n'}
        assert "also (more.cedar:1)" in visible_text(await browser.post(path, added))
        vain = {**added, "text": '@id("vain")\nforbid (principal, action, resource == Tool::"shop.nothing");'}
        assert "never matches: unknown tool shop.nothing" in visible_text(await browser.post(path, vain))
    active = await console.gateway.get("/v1/policies", token=console.gateway.token("root", scopes=[ADMIN_SCOPE]))
    assert [each["path"] for each in active.json()["files"]] == ["asking.cedar"]


async def test_a_switch_is_turned_off_and_by_an_operator_on_again(console: ConsoleGateway, world: World) -> None:
    path = "/console/switches"
    typed = {"kind": "tool", "value": "shop.login", "reason": HOSTILE}
    async with open_as(console, "administrator") as browser, open_as(console, "maker") as maker:
        tool = await browser.get("/console/tools/shop.login")
        assert f"{path}/off?kind=tool&amp;value=shop.login" in tool.text
        form_token = find_form_token(await browser.get(f"{path}/off?kind=tool&value=shop.login"))
        form = {**typed, "form_token": form_token}
        assert (await browser.post(f"{path}/off", form, origin="https://evil.example")).status_code == 403
        assert (await browser.post(f"{path}/off", {**form, "form_token": "wrong"})).status_code == 403
        theirs = {**form, "form_token": find_form_token(await maker.get("/console/sign-out"))}
        assert (await maker.post(f"{path}/off", theirs)).status_code == 403
        misspelt = await browser.post(f"{path}/off", {**form, "value": "shop.logim"})
        assert misspelt.status_code == 404
        assert 'value="shop.logim"' in misspelt.text
        assert "document.title='owned'" in visible_text(misspelt)
        assert (await browser.post(f"{path}/off", form)).headers["location"] == path
        assert (await console.gateway.call("shop.login", {"password": "x"})).json()["error"]["slug"] == "switched-off"
        tool = await browser.get("/console/tools/shop.login")
        assert "Switched off by" in visible_text(tool)
        assert f"{path}/off" not in tool.text
        assert f"{path}/on?kind=tool&amp;value=shop.login" in tool.text
        listed = await browser.get(path)
        assert find_page_fault(listed.content) is None
        assert "tool shop.login" in visible_text(listed)
        assert r"\u202egpj.exe" in listed.text
        on = await browser.get(f"{path}/on?kind=tool&value=shop.login")
        turned = {"kind": "tool", "value": "shop.login", "form_token": find_form_token(on)}
        refused = await browser.post(f"{path}/on", turned)
        assert refused.status_code == 403
        assert "issuer of operators" in visible_text(refused)
        assert (await console.gateway.call("shop.login", {"password": "x"})).status_code == 403
    async with open_as(console, "administrator", operator=True) as operator:
        on = await operator.get(f"{path}/on?kind=tool&value=shop.login")
        done = await operator.post(f"{path}/on", {**turned, "form_token": find_form_token(on)})
        assert (done.status_code, done.headers["location"]) == (303, path)
        assert "Nothing is switched off" in visible_text(await operator.get(path))
    assert (await console.gateway.call("shop.login", {"password": "x"})).json()["state"] == "succeeded"


async def test_grants_stand_below_the_one_they_were_made_from_and_a_revocation_says_what_it_ends(
    console: ConsoleGateway, world: World
) -> None:
    gateway = console.gateway
    top = (await gateway.post_exchange(agent="planner")).json()
    below = (await gateway.post_exchange(subject_token=top["access_token"], agent="helper")).json()
    await gateway.post_exchange(agent="unrelated")
    waits = await gateway.call("shop.delete_user", {"id": 79}, key="tree", token=below["access_token"])
    assert waits.status_code == 202, waits.text
    async with open_as(console, "maker") as browser:
        page = visible_text(await browser.get("/console/agents"))
        listed = page[page.index("Grants") :]
        assert listed.index("unrelated") < listed.index("planner") < listed.index("made from another grant: helper")
        asked = visible_text(await browser.get(f"/console/agents/grants/{top['grant_id']}/revoke"))
        assert "Made from it 1 grant, each with its token" in asked
        assert "Waiting for approval 1 call " in asked
        assert (await browser.get("/console/agents?before=x")).status_code == 400
    shown = (await gateway.get(f"/v1/grants/{below['grant_id']}")).json()
    assert shown["revoking_ends"] == {"grants": 1, "waiting_calls": 1}


async def test_a_link_signs_in_once_and_its_session_decides_nothing(console: ConsoleGateway, world: World) -> None:
    assert console.gateway.in_process is not None
    links: list[str] = []
    console.gateway.in_process.console_access.offer_link(links.append)
    async with console.open_browser() as browser, console.open_browser() as second:
        landed = await browser.get(links[0].removeprefix(console.url))
        assert (landed.status_code, landed.headers["location"]) == (303, "/console")
        assert "developer" in visible_text(await browser.get("/console"))
        assert len(links) == 2
        assert (await second.get(links[0].removeprefix(console.url))).status_code == 401
        path = f"/console/approvals/{world['approval_id']}"
        page = await browser.get(path)
        assert 'name="code"' in page.text
        assert f"{path}/approve" not in page.text
        token = re.findall(r'name="form_token" value="(\w+)"', page.text)[-1]
        refused = await browser.post(f"{path}/approve", {"form_token": token, "binding": "0" * 64})
        assert refused.status_code == 403
    assert (await console.fetch_call(world["call_id"]))["state"] == "awaiting_approval"


async def test_the_search_opens_a_call_by_its_id_and_finds_tools(console: ConsoleGateway, world: World) -> None:
    async with open_as(console, "maker") as browser:
        call = await browser.get(f"/console/search?q={world['call_id']}")
        assert call.headers["location"] == f"/console/calls/{world['call_id']}"
        tools = await browser.http.get("/console/search?q=user", follow_redirects=True)
        assert "shop.get_user" in visible_text(tools)
        trace = world["call_id"].replace("-", "")
        found = await browser.get(f"/console/search?q={trace}")
        assert found.headers["location"] == f"/console/calls?trace={trace}"
        agent = await browser.get("/console/tools?q=billing-bot")
        assert 'href="/console/calls?agent=billing-bot"' in agent.text
        assert (await browser.get("/console/")).headers["location"] == "/console"
