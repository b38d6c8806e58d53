"""Run Chromium in a sandbox, and speak to it over its debugging pipe, so that nothing listens on a port.

Its own sandbox needs namespaces, which ours forbids inside; ours holds all of it. It has no files but its own, and no
way out but the port of `page_proxy.py`.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from deputize.core.errors import ProgramCrashed, ToolFailed
from deputize.execute.egress_proxy import PROXY_PORT
from deputize.sandboxes.client import RunningSandbox
from deputize.sandboxes.port import SandboxFolder, SandboxLimits, SandboxSpec

# Of Debian, Fedora and others; the wrapper in /usr/bin reads files that the sandbox does not see.
_PROGRAMS: Final = (
    "/usr/lib/chromium/chromium", "/usr/lib64/chromium-browser/chromium-browser", "/usr/lib64/chromium/chromium",
    "/usr/lib/chromium-browser/chromium-browser",
)  # fmt: skip
_FONTS: Final = "/etc/fonts"
# The pipe is 3 and 4; a sandbox passes on 0 and 1.
_BEGIN: Final = 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null 2>&1'
_OPTIONS: Final = (
    "--headless", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage", "--no-zygote",
    "--no-first-run", "--no-default-browser-check", "--hide-scrollbars", "--mute-audio", "--block-new-web-contents",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync",
    "--disable-quic", "--disable-breakpad", "--no-pings", "--disable-domain-reliability",
    # What it would send or look up by itself.
    "--disable-features=AutofillServerCommunication,DialMediaRouteProvider,HttpsUpgrades,MediaRouter,OptimizationHints",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp", "--proxy-bypass-list=<-loopback>",
    "--renderer-process-limit=4", "--window-size=1280,900", "--user-data-dir=/tmp/profile",  # its own
)  # fmt: skip
_PROCESSES: Final = 300
_STORAGE_BYTES: Final = 268_435_456
# An answer begins with the number of its command. It may be long, and is read by who needs it.
_ANSWER: Final = re.compile(rb'\{"id":([0-9]{1,15}),("error":)?')
# A longer message, as of a page with a million elements, ends the browser.
LONGEST_MESSAGE: Final = 33_554_432


def find_chromium() -> str | None:
    """Find Chromium's program."""
    return next((each for each in _PROGRAMS if os.access(each, os.X_OK)), None)


def build_spec(program: str, public_key_digest: str, memory_bytes: int) -> SandboxSpec:
    """Build the sandbox of a browser that accepts the certificates of one key."""
    options = (
        *_OPTIONS, f"--proxy-server=http://127.0.0.1:{PROXY_PORT}",
        f"--ignore-certificate-errors-spki-list={public_key_digest}", "about:blank",
    )  # fmt: skip
    return SandboxSpec(
        command=("/bin/sh", "-c", _BEGIN, "sh", program, *options),
        seconds=None,
        folders=(SandboxFolder(path=_FONTS),) if os.path.isdir(_FONTS) else (),
        proxy_port=PROXY_PORT,
        limits=SandboxLimits(memory_bytes=memory_bytes, processes=_PROCESSES, storage_bytes=_STORAGE_BYTES),
    )


class BrowserProcess:
    """A browser and its one tab. `note_event` is told each event by its name and parameters."""

    def __init__(self, sandbox: RunningSandbox, note_event: Callable[[str, dict[str, Any]], None]) -> None:
        self._sandbox = sandbox
        self._note_event = note_event
        self._tab = ""
        self._number = 0
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @property
    def has_ended(self) -> bool:
        return self._reading.done()

    async def open_tab(self, seconds: float) -> None:
        """Open the tab, in which pages download nothing and open no window."""
        async with asyncio.timeout(seconds):
            target = (await self.send("Target.createTarget", {"url": "about:blank"}))["targetId"]
            attached = await self.send("Target.attachToTarget", {"targetId": target, "flatten": True})
            await self.send("Browser.setDownloadBehavior", {"behavior": "deny"})
            self._tab = attached["sessionId"]
            # Of no other domain: a page that logs without end would have each line read here.
            await self.send("Page.enable", {})

    async def send(self, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Give a command, and return its answer; raise `ToolFailed` if the browser cannot do it."""
        result: dict[str, Any] = orjson.loads(await self.exchange(method, parameters))["result"]
        return result

    async def exchange(self, method: str, parameters: Mapping[str, Any]) -> bytes:
        """Give a command, and return its answer as it came: a long one would hold up others while it is parsed."""
        if self.has_ended:
            raise ProgramCrashed("the browser of this session has ended")
        self._number += 1
        number, loop = self._number, asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._answers[number] = answer
        command = {"id": number, "method": method, "params": parameters}
        try:
            self._sandbox.stdin.write(orjson.dumps(command | ({"sessionId": self._tab} if self._tab else {})) + b"\0")
            return await answer
        finally:
            self._answers.pop(number, None)

    def tell(self, method: str, parameters: Mapping[str, Any]) -> None:
        """Give a command whose answer does not matter."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters, "sessionId": self._tab}
        self._sandbox.stdin.write(orjson.dumps(command) + b"\0")

    def end(self) -> None:
        self._sandbox.kill()

    async def aclose(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        """Read what the browser says until it ends; then no command is answered any more."""
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError):
                while True:
                    self._note((await self._sandbox.stdout.readuntil(b"\0"))[:-1])
        finally:
            self._sandbox.kill()
            for each in self._answers.values():
                if not each.done():
                    each.set_exception(ProgramCrashed("the browser of this session ended"))

    def _note(self, message: bytes) -> None:
        match = _ANSWER.match(message)
        if match is None:
            event = orjson.loads(message)
            if "method" in event:
                self._note_event(event["method"], event.get("params", {}))
            return
        answer = self._answers.get(int(match[1]))
        if answer is None or answer.done():
            return
        if match[2] is None:
            answer.set_result(message)
        else:
            words = str(orjson.loads(message)["error"].get("message", ""))[:200]
            answer.set_exception(ToolFailed(f"the browser cannot do this: {words}"))
