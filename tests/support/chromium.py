"""A real browser without a screen, driven over its debugging pipe: what it shows, what it runs, what it sends."""

import asyncio
import base64
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

EXECUTABLE = shutil.which("chromium")
_SECONDS = 90.0
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions",
    "--remote-debugging-pipe",
)  # fmt: skip


@dataclass
class Tab:
    """One page of the browser, as wide as it was asked to be."""

    writer: Any
    reader: asyncio.StreamReader
    session: str = ""
    number: int = 0
    complaints: list[str] = field(default_factory=list)
    """What the browser itself found wrong with pages: refused scripts, styles, forms."""
    _loaded_pages: set[str] = field(default_factory=set)
    """The documents that were loaded, also while an answer was awaited."""

    async def send_command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; what the browser says in between is noted."""
        self.number += 1
        told = {"id": self.number, "method": method, "params": parameters}
        self.writer.write(orjson.dumps(told | ({"sessionId": self.session} if self.session else {})) + b"\0")
        while True:
            heard = await self._read_message()
            if heard.get("id") == self.number:
                if "error" in heard:
                    raise RuntimeError(f"{method}: {heard['error']}")
                result: dict[str, Any] = heard["result"]
                return result

    async def open_url(self, url: str) -> None:
        page = (await self.send_command("Page.navigate", url=url))["loaderId"]
        while page not in self._loaded_pages:
            await self._read_message()

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; the debugger may do what the page's own policy forbids."""
        answer = await self.send_command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def click(self, selector: str) -> None:
        """And wait for the page it leads to."""
        pages = set(self._loaded_pages)
        await self.evaluate(f"document.querySelector({selector!r}).click()")
        await self._wait_for_another(pages)

    async def press_key(self, key: str, *, loads: bool = False) -> None:
        """A key by its name, or by the character that it types."""
        text, pages = "\r" if key == "Enter" else key if len(key) == 1 else "", set(self._loaded_pages)
        number = ord(key.upper()) if key.isalnum() and len(key) == 1 else _KEYS.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            await self.send_command(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=number, text=text
            )
        if loads:
            await self._wait_for_another(pages)

    @property
    def page_count(self) -> int:
        """How many documents were loaded."""
        return len(self._loaded_pages)

    async def resize(self, pixels: int, height: int = 844) -> None:
        await self.send_command(
            "Emulation.setDeviceMetricsOverride", width=pixels, height=height, deviceScaleFactor=1, mobile=pixels < 600
        )

    async def capture_png(self, pixels: int, height: int, *, scale: float = 1) -> bytes:
        """Photograph the top of the page, that wide and that high."""
        await self.send_command(
            "Emulation.setDeviceMetricsOverride", width=pixels, height=height, deviceScaleFactor=scale, mobile=False
        )
        return base64.b64decode((await self.send_command("Page.captureScreenshot", format="png"))["data"])

    async def _wait_for_another(self, pages: set[str]) -> None:
        """Wait until another document than these is loaded, which may have happened before the last answer came."""
        while self._loaded_pages <= pages:
            await self._read_message()

    async def _read_message(self) -> dict[str, Any]:
        async with asyncio.timeout(_SECONDS):
            heard: dict[str, Any] = orjson.loads((await self.reader.readuntil(b"\0"))[:-1])
        if heard.get("method") == "Log.entryAdded" and heard["params"]["entry"]["source"] == "security":
            self.complaints.append(heard["params"]["entry"]["text"])
        if heard.get("method") == "Page.lifecycleEvent" and heard["params"]["name"] == "load":
            self._loaded_pages.add(heard["params"]["loaderId"])
        return heard


_KEYS = {"Tab": 9, "Enter": 13}


@asynccontextmanager
async def open_tab(folder: Path) -> AsyncIterator[Tab]:
    """A browser of its own with one page, until the block ends."""
    ours_in, theirs_out = os.pipe()
    theirs_in, ours_out = os.pipe()
    command = " ".join((f"exec {EXECUTABLE}", *_OPTIONS, f"--user-data-dir={folder}", "about:blank"))
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", f"{command} 3<&{theirs_in} 4>&{theirs_out}",
        pass_fds=(theirs_in, theirs_out), start_new_session=True, env={**os.environ, "HOME": str(folder)},
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    reading = asyncio.StreamReader(limit=2**24)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reading), os.fdopen(ours_in, "rb")
    )
    try:
        with os.fdopen(ours_out, "wb", buffering=0) as sending:
            tab = Tab(writer=sending, reader=reading)
            target = (await tab.send_command("Target.createTarget", url="about:blank"))["targetId"]
            tab.session = (await tab.send_command("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
            for domain in ("Page", "Log", "Runtime"):
                await tab.send_command(f"{domain}.enable")
            await tab.send_command("Page.setLifecycleEventsEnabled", enabled=True)
            yield tab
    finally:
        transport.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
