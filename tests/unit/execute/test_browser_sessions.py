"""How many browsers there are at once, whoever asks, and how many at once."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deputize.core.contract.tools import ToolContext
from deputize.core.errors import ResourceLimitExceeded
from deputize.execute.browser import sessions
from deputize.execute.browser.page_proxy import PageProxy
from deputize.execute.browser.sessions import MOST_SESSIONS, BrowserSessions
from deputize.execute.page_client import ListedHosts
from deputize.sandboxes.client import SandboxClient

pytestmark = pytest.mark.requirement("EXE-2")


class Sandbox:
    """What a browser would be in; the most that there were at once is counted."""

    count = most = 0
    listener = object()

    def __init__(self) -> None:
        Sandbox.count += 1
        Sandbox.most = max(Sandbox.most, Sandbox.count)

    async def aclose(self) -> None:
        Sandbox.count -= 1


class Client(SandboxClient):
    async def start(self, spec: Any, *, longest_line: int = 0) -> Any:
        await asyncio.sleep(0)
        return Sandbox()


class Process:
    has_ended = False
    is_opening = asyncio.Event()
    may_open = asyncio.Event()

    def __init__(self, sandbox: Sandbox, note_event: Callable[..., None]) -> None:
        pass

    async def send(self, method: str, parameters: Any) -> dict[str, Any]:
        return {}

    async def open_tab(self, seconds: float) -> None:
        self.is_opening.set()
        await self.may_open.wait()

    async def aclose(self) -> None:
        pass


@pytest.fixture
def browsers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BrowserSessions:
    Sandbox.count = Sandbox.most = 0
    for name in ("is_opening", "may_open"):
        monkeypatch.setattr(Process, name, asyncio.Event())
    monkeypatch.setattr(sessions, "BrowserProcess", Process)
    monkeypatch.setattr(PageProxy, "start", lambda *_: None)
    listed = ListedHosts("[builtin.browser]", ("shop.example",))
    return BrowserSessions(
        Client(tmp_path), "chromium", listed, lambda: PageProxy(listed, seconds=20), per_caller=2, minutes=15,
        memory_bytes=1, seconds=60,
    )  # fmt: skip


async def begin(browsers: BrowserSessions, tenant: str = "acme", agent: str = "bot") -> str:
    context = ToolContext(
        call_id="c", tenant=tenant, user="ada", agent=agent, session=None, key="", attempt=1, seconds_left=60.0,
        traceparent=None, agents=(agent,),
    )  # fmt: skip
    async with browsers.use(context, "new", None) as page:
        return page.session


async def test_calls_at_once_begin_no_more_than_a_caller_may_have(browsers: BrowserSessions) -> None:
    begun = [asyncio.ensure_future(begin(browsers)) for _ in range(10)]
    await asyncio.wait(begun, return_when=asyncio.FIRST_EXCEPTION)
    Process.may_open.set()
    results = await asyncio.gather(*begun, return_exceptions=True)
    assert sum(isinstance(each, str) for each in results) == Sandbox.most == 2
    refused = [each for each in results if not isinstance(each, str)]
    assert all(isinstance(each, ResourceLimitExceeded) and each.nothing_happened for each in refused)
    # Once they are open, the oldest makes room.
    await begin(browsers)
    assert Sandbox.count == 2
    await browsers.aclose()
    assert Sandbox.count == 0


async def test_a_tenant_with_more_than_its_share_makes_room_for_another(browsers: BrowserSessions) -> None:
    Process.may_open.set()
    for number in range(MOST_SESSIONS):
        await begin(browsers, "mallory", f"bot{number}")
    for number in range(MOST_SESSIONS // 2):
        await begin(browsers, "acme", f"bot{number}")
    assert Sandbox.count == MOST_SESSIONS
    with pytest.raises(ResourceLimitExceeded, match="as many as it may"):
        await begin(browsers, "acme", "one-more")
    await browsers.aclose()


async def test_what_is_still_being_opened_ends_with_its_gateway(browsers: BrowserSessions) -> None:
    begun = asyncio.ensure_future(begin(browsers))
    await Process.is_opening.wait()
    await browsers.aclose()
    Process.may_open.set()
    await asyncio.gather(begun, return_exceptions=True)
    assert Sandbox.count == 0
