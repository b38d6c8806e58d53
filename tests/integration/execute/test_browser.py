"""A browser in a sandbox shows pages of listed hosts, and whatever they do, it only reads: judged at the hosts."""

import asyncio
import contextlib
import json
import re
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import BrowserPage, ToolContext
from deputize.core.errors import EgressDenied, ProgramCrashed, ToolFailed, ToolPrecondition
from deputize.execute.browser.page_proxy import PageProxy
from deputize.execute.browser.process import find_chromium
from deputize.execute.browser.sessions import BrowserSession, BrowserSessions
from deputize.execute.page_client import ListedHosts
from deputize.sandboxes.client import SandboxClient
from deputize.tools.browser.declarations import declare_tools
from tests.support.egress_server import Server, make_certificate, make_resolver, run_server
from tests.support.hostile_pages import HostilePages, list_writes
from tests.support.sandbox_host import needs_sandboxes

pytestmark = [
    pytest.mark.requirement("EXE-2"),
    pytest.mark.requirement("EXE-4"),
    pytest.mark.asyncio(loop_scope="module"),
    needs_sandboxes,
    pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed"),
]
HOST = "shop.example"


def make_context(user: str = "ada", agents: tuple[str, ...] = ("bot",)) -> ToolContext:
    return ToolContext(
        call_id="c", tenant="acme", user=user, agent="bot", session=None, key="", attempt=1, seconds_left=60.0,
        traceparent=None, agents=agents,
    )  # fmt: skip


@dataclass
class BrowserWorld:
    """Sessions of browsers that may reach one host, and another host that they may not."""

    sessions: BrowserSessions
    shop: Server
    other: Server
    datagrams: socket.socket

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.shop.port}"

    def use(
        self, session: str = "new", *, context: ToolContext | None = None
    ) -> AbstractAsyncContextManager[BrowserPage]:
        return self.sessions.use(context or make_context(), session, None)

    async def show(self, page: BrowserPage, path: str) -> dict[str, Any]:
        answer = await page.send("Page.navigate", {"url": self.url + path})
        await page.settle()
        return answer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrowserWorld]:
    server_tls, client_tls = make_certificate(tmp_path_factory.mktemp("tls"), HOST)
    async with contextlib.AsyncExitStack() as stack:
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", 0))
        datagrams.setblocking(False)
        other = await stack.enter_async_context(run_server(lambda path, host: b"HTTP/1.1 204 No Content\r\n\r\n"))
        pages = HostilePages(other, datagrams.getsockname()[1])
        shop = await stack.enter_async_context(run_server(pages, server_tls))
        # Where every user can reach it.
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))
        Path(folder).chmod(0o755)
        yield await _open_world(stack, shop, other, datagrams, Path(folder), client_tls)


async def _open_world(
    stack: contextlib.AsyncExitStack, shop: Server, other: Server, datagrams: socket.socket, folder: Path,
    tls: ssl.SSLContext,
) -> BrowserWorld:  # fmt: skip
    listed = ListedHosts("[builtin.browser]", (), (f"{HOST}:{shop.port}",))
    program = find_chromium()
    assert program is not None
    sessions = BrowserSessions(
        SandboxClient(folder / "sandboxes", accept_weak_limits=True, accept_shared_user=True),
        program,
        listed,
        partial(PageProxy, listed, seconds=20, resolver=make_resolver("127.0.0.1"), tls=tls),
        per_caller=1,
        minutes=15,
        memory_bytes=1_073_741_824,
        seconds=60,
    )
    stack.push_async_callback(sessions.aclose)
    return BrowserWorld(sessions, shop, other, datagrams)


async def read(page: BrowserPage, expression: str) -> Any:
    answer = await page.send("Runtime.evaluate", {"expression": expression, "returnByValue": True})
    return answer["result"].get("value")


async def test_hostile_pages_only_read_and_only_from_listed_hosts(world: BrowserWorld) -> None:
    async with world.use() as page:
        await world.show(page, "/hostile")
        assert await read(page, "document.title") == "tried"
        refused = {reason for _, reason in page.attempts if reason}
        # They did try.
        assert {each.split(" ")[0] for each in refused} >= {"POST", "PUT", "DELETE", "127.0.0.1,"}
        session = page.session
    async with world.use(session) as page:
        # A page that submits itself is not replaced by an answer to that.
        await world.show(page, "/submits")
        assert "POST is possible only" in await read(page, "document.body.innerText")
        for path in ("/metadata", "/elsewhere"):
            assert "errorText" in await world.show(page, path) or "is not one of" in await read(
                page, "document.body.innerText"
            )
    assert list_writes(world.shop) == []
    assert world.other.heads == []
    with pytest.raises(BlockingIOError):
        world.datagrams.recv(1)


async def test_a_page_that_is_left_alone_sends_nothing(world: BrowserWorld) -> None:
    async with world.use() as page:
        await world.show(page, "/page/quiet")
        await page.send("Runtime.evaluate", {"expression": "setTimeout(() => fetch('/page/later'), 300)"})
        session = page.session
    await asyncio.sleep(1.5)
    assert not any("/page/later" in head for head in world.shop.heads)
    async with world.use(session) as page:
        await page.settle()
    assert any("/page/later" in head for head in world.shop.heads)


async def test_a_call_that_writes_lets_its_page_write_once(world: BrowserWorld) -> None:
    submit = {"expression": "document.forms[0].submit()"}
    async with world.use() as page:
        await world.show(page, "/order")
        session = page.session
    async with world.use(session) as page:
        page.allow_writes(f"{world.url}/order")
        await page.send("Runtime.evaluate", submit)
        await page.settle()
        assert await read(page, "document.body.innerText") == "You are at /sink/order."
    assert list_writes(world.shop) == ["POST /sink/order HTTP/1.1"]


async def test_an_approved_click_is_refused_once_its_form_is_another(world: BrowserWorld) -> None:
    functions = {each.__name__: getattr(each, ATTRIBUTE) for each in declare_tools(world.sessions.use)}
    sent, url = list_writes(world.shop), f"{world.url}/order"
    shown = await functions["navigate"].run(url=url, context=make_context())
    send, item = (re.search(rf"{each}.*ref=(\w+)", shown["text"]) for each in ('button "Send"', 'textbox "Item"'))
    assert send is not None
    assert item is not None
    asked = {"session": shown["browser_session_id"], "ref": send[1], "url": url}
    preview = await functions["click"].preview(**asked, context=make_context())
    fields = [{"ref": item[1], "value": "7"}]
    await functions["fill"].run(session=asked["session"], fields=fields, context=make_context())
    approved = replace(make_context(), guards=preview.guards)
    # It tries all the time, and a click that is refused lets nothing of that pass.
    async with world.use(asked["session"]) as page:
        await read(page, "setInterval(() => fetch('/sink/now', {method: 'POST'}), 1)")
    with pytest.raises(ToolPrecondition, match="not as it was when this was approved"):
        await functions["click"].run(**asked, context=approved)
    for wrong in ({"ref": "p1e1"}, {"ref": "p1e999999"}, {"url": f"{world.url}/other"}):
        with pytest.raises(ToolPrecondition):
            await functions["click"].run(**{**asked, **wrong}, context=make_context())
    assert list_writes(world.shop) == sent


async def test_what_no_line_refers_to_is_not_clicked(world: BrowserWorld) -> None:
    functions = {each.__name__: getattr(each, ATTRIBUTE) for each in declare_tools(world.sessions.use)}
    shown = await functions["navigate"].run(url=f"{world.url}/order", context=make_context())
    async with world.use(shown["browser_session_id"]) as page:
        root = (await page.send("DOM.getDocument", {"depth": -1}))["root"]
    text = json.dumps(root)
    others = re.findall(r'"backendNodeId": (\d+), "nodeType": (?:3|9|10)', text)
    assert others
    for each in others:
        with pytest.raises(ToolPrecondition, match="there is no p1e"):
            await functions["follow"].run(session=shown["browser_session_id"], ref=f"p1e{each}", context=make_context())


async def test_a_page_that_is_not_shown_says_why(world: BrowserWorld) -> None:
    functions = {each.__name__: getattr(each, ATTRIBUTE) for each in declare_tools(world.sessions.use)}
    url = f"https://{HOST}:{world.shop.port}"
    for path, problem, words in (
        ("/metadata", EgressDenied, "169.254.169.254:80 was refused"),
        ("/elsewhere", EgressDenied, "127.0.0.1"),
    ):
        with pytest.raises(problem, match=words):
            await functions["navigate"].run(url=f"{url}{path}", context=make_context())


async def test_a_session_is_of_one_caller_and_one_too_many_ends_the_oldest(world: BrowserWorld) -> None:
    eve = make_context("eve")
    async with world.use(context=eve) as page:
        first, first_id = page.session, page.read_id()
        await world.show(page, "/page/one")
        assert page.read_id() != first_id
    for other in (make_context(), make_context("eve", ()), make_context("eve", ("bot", "helper"))):
        with pytest.raises(ToolPrecondition, match="no such browser session"):
            async with world.use(first, context=other):
                pass
    async with world.use(context=eve):
        with pytest.raises(ToolPrecondition):
            async with world.use(first, context=eve):
                pass


async def test_a_dialog_holds_nothing_up_and_a_crash_ends_the_session(world: BrowserWorld) -> None:
    async with world.use() as page:
        assert await read(page, "alert('x'), confirm('y')") is False
        with pytest.raises(ToolFailed, match="cannot do this"):
            await page.send("Page.noSuchCommand", {})
        with pytest.raises(ProgramCrashed):
            await page.send("Page.crash", {})
        session = page.session
    with pytest.raises(ToolPrecondition):
        async with world.use(session):
            pass


async def test_a_page_that_logs_without_end_is_not_listened_to(
    world: BrowserWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = set()
    monkeypatch.setattr(BrowserSession, "note_event", lambda _, name, parameters: told.add(name))
    async with world.use() as page:
        await world.show(page, "/page/")
        await read(page, "document.body.append('x'), console.log('x'), void Promise.reject(new Error('x'))")
        await page.settle()
    assert {name.partition(".")[0] for name in told} <= {"Page", "Target", "Inspector"}, told


async def test_a_session_expires_under_a_call(world: BrowserWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.sessions, "_minutes", 0.02)
    forever = {"expression": "new Promise(() => 0)", "awaitPromise": True}
    async with world.use() as page:
        session = page.session
        with pytest.raises(ProgramCrashed):
            await page.send("Runtime.evaluate", forever)
    with pytest.raises(ToolPrecondition):
        async with world.use(session):
            pass


async def test_no_browser_is_started_for_a_host_that_is_not_listed(world: BrowserWorld) -> None:
    with pytest.raises(EgressDenied):
        async with world.sessions.use(make_context(), "new", "https://evil.example/"):
            pass
