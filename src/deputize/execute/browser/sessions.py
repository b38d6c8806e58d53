"""Keep browser sessions: each of one caller, for some minutes, and not too many at once.

A session is a browser of its own, so nothing of one is left for another. It lives in this process and ends with it.
The tools `browser.*` get `BrowserSessions.use` from the command line's `builtin_tools.py`.
"""

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

from deputize.core.contract.tools import BrowserPage, ToolContext
from deputize.core.errors import (
    ResourceLimitExceeded,
    SandboxFailed,
    ToolFailed,
    ToolPrecondition,
    ToolRequiresSetup,
    ToolTimeout,
)
from deputize.execute.browser.page_proxy import PageProxy
from deputize.execute.browser.process import LONGEST_MESSAGE, BrowserProcess, build_spec
from deputize.execute.job_processes import JobProcesses
from deputize.execute.page_client import ListedHosts
from deputize.sandboxes.client import SandboxClient, SandboxUnavailable

NEW_SESSION: Final = "new"
MOST_SESSIONS: Final = 16
_START_SECONDS: Final = 30.0
_SETTLE_SECONDS: Final = 8.0
# A page is at rest when nothing was sent for so long; a click takes a moment to send something.
_QUIET_SECONDS: Final = 0.4
_LOOK_SECONDS: Final = 0.05

Owner = tuple[str, str, tuple[str, ...]]


class BrowserSession:
    """A browser, its proxy, and the document that it shows."""

    def __init__(self, owner: Owner, proxy: PageProxy) -> None:
        self.id = secrets.token_hex(16)
        self.owner = owner
        self.proxy = proxy
        self.lock = asyncio.Lock()
        self.stack = contextlib.AsyncExitStack()
        self.process: BrowserProcess | None = None
        self.expiry: asyncio.Task[None] | None = None
        self._document = ""
        self._document_count = 0

    def note_event(self, name: str, parameters: dict[str, Any]) -> None:
        """Count documents, and answer for a person what would wait for one."""
        if self.process is None:
            return
        if name == "Page.frameNavigated" and "parentId" not in parameters["frame"]:
            if parameters["frame"]["loaderId"] != self._document:
                self._document = parameters["frame"]["loaderId"]
                self._document_count += 1
        elif name == "Page.javascriptDialogOpening":
            # Only leaving the page is never refused.
            self.process.tell("Page.handleJavaScriptDialog", {"accept": parameters["type"] == "beforeunload"})
        elif name == "Inspector.targetCrashed":
            self.process.end()

    def read_page_id(self) -> str:
        return f"p{self._document_count}"

    async def settle(self) -> None:
        """Wait until the document is loaded and nothing is on its way, but not for pages that never rest."""
        assert self.process is not None
        end = asyncio.get_running_loop().time() + _SETTLE_SECONDS
        await asyncio.sleep(_QUIET_SECONDS)
        while asyncio.get_running_loop().time() < end:
            if self.proxy.is_quiet(_QUIET_SECONDS):
                asked = {"expression": "document.readyState", "returnByValue": True}
                with contextlib.suppress(TimeoutError):
                    # A page whose script never ends does not answer.
                    async with asyncio.timeout_at(end):
                        if (await self.process.send("Runtime.evaluate", asked))["result"].get("value") == "complete":
                            return
            await asyncio.sleep(_LOOK_SECONDS)


class BrowserSessions:
    """The sessions of this process. `per_caller` is how many one caller has at once; a further one ends its oldest."""

    def __init__(
        self,
        sandboxes: SandboxClient,
        program: str,
        listed: ListedHosts,
        make_proxy: Callable[[], PageProxy],
        *,
        per_caller: int,
        minutes: float,
        memory_bytes: int,
        seconds: float,
    ) -> None:
        self._listed = listed
        self._make_proxy = make_proxy
        self._sandboxes = sandboxes
        self._program = program
        self._per_caller = per_caller
        self._minutes = minutes
        self._memory_bytes = memory_bytes
        self._seconds = seconds
        self._sessions: dict[str, BrowserSession] = {}
        self._jobs = JobProcesses()

    @contextlib.asynccontextmanager
    async def use(self, context: ToolContext, session_id: str, shown_url: str | None) -> AsyncIterator[BrowserPage]:
        """Use a session of the caller for one call, or a new one. Another call of the session waits."""
        if shown_url is not None:
            # Before a browser is started for nothing.
            self._listed.require(shown_url)
        owner = (context.tenant, context.user, context.agents)
        end = asyncio.get_running_loop().time() + min(context.seconds_left, self._seconds)
        session = await self._start(owner) if session_id == NEW_SESSION else self._find(owner, session_id)
        try:
            async with contextlib.AsyncExitStack() as stack, asyncio.timeout_at(end):
                await stack.enter_async_context(session.lock)
                # It may have ended while this waited.
                process = self._find(owner, session.id).process
                assert process is not None
                yield BrowserPage(
                    session=session.id,
                    send=process.send,
                    settle=session.settle,
                    read_id=session.read_page_id,
                    run_on_tree=partial(self._run_on_tree, context.tenant, process),
                    allow_writes=session.proxy.allow_writes,
                    attempts=stack.enter_context(session.proxy.open_call()),
                )
        except BaseException as error:
            if session_id == NEW_SESSION:
                # Its caller never learns its id.
                await self._end(session)
            if isinstance(error, TimeoutError):
                raise ToolTimeout("the page took too long") from error
            raise

    async def _run_on_tree(
        self, tenant: str, process: BrowserProcess, job: Callable[[bytes], bytes], question: bytes
    ) -> bytes:
        tree = await process.exchange("Accessibility.getFullAXTree", {})
        reply = await self._jobs.run_job(tenant, job, question + b"\n" + tree)
        if reply is None:
            raise ToolFailed("the page is too large to be read, or too many are read at once")
        return reply

    def _find(self, owner: Owner, session_id: str) -> BrowserSession:
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner or session.process is None or session.process.has_ended:
            raise ToolPrecondition(
                "there is no such browser session: it ended, or was begun by another caller or gateway",
                advice="Begin a new one with browser.navigate.",
                nothing_happened=True,
            )
        return session

    async def _start(self, owner: Owner) -> BrowserSession:
        for each in list(self._sessions.values()):
            if each.process is not None and each.process.has_ended:
                await self._end(each)
        surplus = self._choose_surplus(owner)
        session = BrowserSession(owner, self._make_proxy())
        # It is counted from now on, and the surplus no longer: nothing was awaited since they were.
        self._sessions[session.id] = session
        for each in surplus:
            del self._sessions[each.id]
        try:
            for each in surplus:
                await self._end(each)
            await self._open(session)
        except SandboxUnavailable as error:
            raise ToolRequiresSetup(
                f"the browser needs a sandbox, and this host has none: {error}",
                advice="The operator must run deputize sandboxes check on the host of the gateway.",
                nothing_happened=True,
            ) from error
        except TimeoutError as error:
            raise SandboxFailed("the browser did not start in time", nothing_happened=True) from error
        finally:
            if session.expiry is None:
                await self._end(session)
        return session

    def _choose_surplus(self, owner: Owner) -> list[BrowserSession]:
        """Choose what a new session ends: the caller's oldest one, or that of a tenant with more than its share.

        One that is still being opened is never chosen.
        """
        own = [each for each in self._sessions.values() if each.owner == owner]
        if len(own) >= self._per_caller:
            surplus = [each for each in own if each.expiry is not None][: len(own) + 1 - self._per_caller]
            if len(surplus) < len(own) + 1 - self._per_caller:
                raise ResourceLimitExceeded(
                    "the browser sessions that this caller may have are still being opened",
                    advice="Wait for the answers of their calls.",
                    nothing_happened=True,
                )
            return surplus
        if len(self._sessions) < MOST_SESSIONS:
            return []
        counts = Counter(each.owner[0] for each in self._sessions.values())
        largest = max(counts, key=lambda tenant: counts[tenant])
        surplus = [each for each in self._sessions.values() if each.owner[0] == largest and each.expiry is not None]
        if not surplus or counts[largest] <= counts[owner[0]] + 1:
            raise ResourceLimitExceeded(
                f"this gateway has {MOST_SESSIONS} browser sessions, as many as it may",
                advice="Try again in some minutes: sessions end by themselves.",
                nothing_happened=True,
            )
        return surplus[:1]

    async def _open(self, session: BrowserSession) -> None:
        spec = build_spec(self._program, session.proxy.public_key_digest, self._memory_bytes)
        sandbox = await self._sandboxes.start(spec, longest_line=LONGEST_MESSAGE)
        await session.stack.enter_async_context(contextlib.aclosing(sandbox))
        session.stack.push_async_callback(session.proxy.aclose)
        if sandbox.listener is None:
            end = await sandbox.wait()
            raise SandboxFailed(f"the sandbox of the browser was not started: {end.note}", nothing_happened=True)
        session.proxy.start(sandbox.listener)
        session.process = BrowserProcess(sandbox, session.note_event)
        session.stack.push_async_callback(session.process.aclose)
        await session.process.open_tab(_START_SECONDS)
        if session.id not in self._sessions:
            raise SandboxFailed("this gateway is stopping", nothing_happened=True)
        session.expiry = asyncio.get_running_loop().create_task(self._expire(session))

    async def _expire(self, session: BrowserSession) -> None:
        await asyncio.sleep(self._minutes * 60)
        session.expiry = None
        await self._end(session)

    async def _end(self, session: BrowserSession) -> None:
        self._sessions.pop(session.id, None)
        if session.expiry is not None:
            session.expiry.cancel()
        await session.stack.aclose()

    async def aclose(self) -> None:
        """End all sessions."""
        for each in list(self._sessions.values()):
            await self._end(each)
        await self._jobs.aclose()
        await self._sandboxes.aclose()
