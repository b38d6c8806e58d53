"""Two hundred hostile texts in every field that reaches a page, a live row or an export: they stay text there."""

import asyncio
import csv
import io
import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from deputize.core.caller import ADMIN_SCOPE
from tests.integration.interfaces.console.test_pages import PAGES, find_form_token, open_as, seal_session
from tests.support.approval_gateway import APPROVAL_POLICIES
from tests.support.chromium import EXECUTABLE, open_tab
from tests.support.console_gateway import Browser, ConsoleGateway, open_console_gateway
from tests.support.hostile_texts import HOSTILE_TEXTS, MARK
from tests.support.page_parser import find_foreign_markup

pytestmark = pytest.mark.requirement("GOV-2")

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_STREAM_FIELDS = ("id: ", "event: ", "data: ", "retry: ", ":")
# What fits into a task, a reason and an argument; each has all texts, some at a time.
_CHUNKS = ["".join(HOSTILE_TEXTS[start : start + 5])[:390] for start in range(0, len(HOSTILE_TEXTS), 5)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def console(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConsoleGateway]:
    async with open_console_gateway(module_database, tmp_path_factory.mktemp("hostile"), codes=True) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ids(console: ConsoleGateway) -> dict[str, str]:
    """Ids of calls, entries and requests full of hostile texts."""
    gateway, are_free = console.gateway, asyncio.Semaphore(16)
    lent_texts: list[str] = []

    async def write(text: str) -> None:
        async with are_free:
            # Its name is refused where it cannot be one; where it can be, the refusal is recorded under it.
            await gateway.call(text, {text: text}, session=text)
            read = await gateway.call("shop.get_user", {"id": 7}, session=text)
            assert read.status_code == 200, read.text
            lent = await gateway.post_exchange(gateway.token(f"u {text}"), agent=f"a {text}", task=text)
            # Control characters are refused in the names of people and agents.
            if lent.status_code == 200:
                await gateway.call("shop.get_user", {"id": 7}, token=lent.json()["access_token"])
                lent_texts.append(text)

    await asyncio.gather(*map(write, HOSTILE_TEXTS))
    assert len(lent_texts) > 150
    grants = await gateway.get("/v1/grants", token=gateway.token("root", scopes=[ADMIN_SCOPE]), limit=1)
    call_id, approval_id = await console.request_approval(
        "hostile", tool="shop.rename_user", id=9, name="".join(_CHUNKS)
    )
    entries = (await gateway.get("/v1/audit", token=gateway.token("ana"), tool="shop.get_user")).json()["entries"]
    return {
        "call_id": call_id, "approval_id": approval_id, "entry_id": entries[0]["id"], "name": "shop.get_user",
        "grant_id": grants.json()["grants"][0]["grant_id"], "read_id": entries[0]["entry"]["call"],
        "server": "nowhere", "flow_id": call_id,
    }  # fmt: skip


async def _collect_faults(browser: Browser, path: str) -> tuple[list[tuple[str, list[str]]], bool]:
    """Open a page, and the older ones after it; tell also whether any of the texts is on them."""
    faults, is_marked, next_path = [], False, path
    for _ in range(12):
        page = await browser.get(next_path)
        is_marked |= MARK in page.text
        if found := find_foreign_markup(page.text):
            faults.append((next_path, found))
        older = re.search(r'href="([^"]+(?:before|after)=[^"]+)">(?:Older|Next)', page.text)
        if older is None:
            break
        next_path = unescape(older[1])
    return faults, is_marked


# Pages on which the texts have to be found: elsewhere they would stay text only because they are not there.
_WITH_TEXTS = {
    "/console", "/console/calls", "/console/calls/{read_id}", "/console/audit", "/console/audit/{entry_id}",
    "/console/agents", "/console/agents/grants/{grant_id}/revoke", "/console/approvals/{approval_id}",
    "/console/policies", "/console/policies/backtest", "/console/switches",
}  # fmt: skip


def test_there_are_at_least_two_hundred_texts() -> None:
    assert len(HOSTILE_TEXTS) >= 200
    assert all(MARK in each for each in HOSTILE_TEXTS)


def test_a_page_that_lets_a_text_through_is_noticed() -> None:
    noticed = [each for each in HOSTILE_TEXTS if find_foreign_markup(f'<p><a href="/console?q={each}">{each}</a></p>')]
    markup = [each for each in HOSTILE_TEXTS if "<" in each or '"' in each or not each.isprintable()]
    assert set(markup) - set(noticed) <= {each for each in markup if each.startswith(("&", "%", "\\", "\t"))}
    assert len(noticed) > 150


async def test_pages_and_older_ones_have_only_their_own_markup(console: ConsoleGateway, ids: dict[str, str]) -> None:
    gateway = console.gateway
    token = gateway.token("root", scopes=[ADMIN_SCOPE])
    for number, chunk in enumerate(_CHUNKS[:8]):
        body = {"kind": "agent", "value": f"a{number}", "off": True, "reason": chunk, "unknown": True}
        assert (await gateway.post("/v1/switches", body, token=token)).status_code < 300
    reasons = [orjson.dumps("".join(each for each in chunk if each.isprintable())).decode() for chunk in _CHUNKS]
    rules = "\n".join(
        f'@id("hostile-{number}")\n@reason({reason})\nforbid (principal == User::"{number}", action, resource);'
        for number, reason in enumerate(reasons)
        if "\\u" not in reason
    )
    put = await gateway.http.put(
        "/v1/policies",
        json={"files": [{"path": "asking.cedar", "text": f"{APPROVAL_POLICIES}\n{rules}"}]},
        headers={"authorization": f"Bearer {token}"},
    )
    assert put.status_code == 200, put.text
    async with open_as(console, "administrator") as browser:
        found = {
            path: await _collect_faults(browser, path.format(**ids)) for path in (*PAGES, "/console/calls/{read_id}")
        }
    assert {path: faults for path, (faults, _) in found.items() if faults} == {}
    assert _WITH_TEXTS - {path for path, (_, is_marked) in found.items() if is_marked} == set()


async def test_what_is_typed_into_an_address_or_a_form_comes_back_as_text(
    console: ConsoleGateway, ids: dict[str, str]
) -> None:
    faults = []
    async with open_as(console, "administrator") as browser:
        token = find_form_token(await browser.get("/console/policies/simulate"))
        for number, each in enumerate(HOSTILE_TEXTS):
            # Each text is in each field once.
            names = ("tool", "caller", "agent", "outcome", "rule", "session", "trace", "resource", "from")
            fields = {name: HOSTILE_TEXTS[number - index] for index, name in enumerate(names)}
            typed = {"tool": each, "user": each, "agents": each, "arguments": each, "form_token": token}
            pages = await asyncio.gather(
                browser.http.get("/console/calls", params=fields),
                browser.http.get("/console/tools", params={"q": each}),
                browser.post("/console/policies/simulate", typed),
            )
            assert [page.status_code for page in pages if page.status_code >= 500] == []
            faults += [(each, fault) for page in pages for fault in find_foreign_markup(page.text)]
    assert faults == []


async def test_exports_have_no_formula_and_every_line_is_one_entry(
    console: ConsoleGateway, ids: dict[str, str]
) -> None:
    async with open_as(console, "administrator") as browser:
        table = (await browser.get("/console/audit/export?format=csv")).text
        lines = (await browser.get("/console/audit/export?format=jsonl")).content.splitlines()
    rows = list(csv.reader(io.StringIO(table, newline="")))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert [cell for row in rows for cell in row if cell.startswith(_FORMULA_STARTS)] == []
    assert MARK in table
    assert all(orjson.loads(line)["entry"] for line in lines)


async def test_live_rows_have_only_their_own_markup_and_no_text_ends_a_line(
    console: ConsoleGateway, ids: dict[str, str]
) -> None:
    texts = HOSTILE_TEXTS[::5]
    async with (
        open_as(console, "maker") as browser,
        asyncio.timeout(90),
        browser.http.stream("GET", "/console/calls/live") as feed,
    ):
        lines = feed.aiter_lines()
        await anext(lines)
        for each in texts:
            await console.gateway.call(each, token=console.gateway.token("ana"))
        last = (await console.gateway.call("shop.get_user", {"id": 7})).json()["call_id"]
        faults, is_marked = [], False
        async for line in lines:
            is_marked |= MARK in line
            if line and not line.startswith(_STREAM_FIELDS):
                faults.append(line)
            if line.startswith("data: <"):
                faults += find_foreign_markup(line.removeprefix("data: "))
            if last in line:
                break
    assert (faults, is_marked) == ([], True)


@pytest.mark.nightly
@pytest.mark.skipif(EXECUTABLE is None, reason="chromium is not installed")
async def test_in_a_browser_no_text_runs_and_none_fetches(
    console: ConsoleGateway, ids: dict[str, str], tmp_path: Path
) -> None:
    async with open_tab(tmp_path) as tab:
        await tab.open_url(f"{console.url}/console/sign-in")
        await tab.evaluate(f"document.cookie = 'deputize-session={seal_session(console, 'administrator')}; path=/'")
        for path, statuses in PAGES.items():
            if statuses[0] != 200:
                continue
            await tab.open_url(console.url + path.format(**ids))
            assert (path, MARK in await tab.evaluate("document.title.slice(0, 4)")) == (path, False)
            assert await tab.evaluate("document.scripts.length") <= 1
            fetched = await tab.evaluate("performance.getEntriesByType('resource').map(each => each.name)")
            assert [each for each in fetched if not each.startswith(f"{console.url}/console/")] == []
        assert tab.complaints == []
