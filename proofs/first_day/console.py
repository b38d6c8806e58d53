"""The console as a person reads it: pages in a session that the link of `deputize dev` began, as text."""

import html
import re
from dataclasses import dataclass

import httpx2

from proofs.kit.child_process import ChildProcess
from proofs.kit.sandbox import Sandbox

_LINK = re.compile(r"▶ Console (\S+)")
_UNREAD = re.compile(r"<(script|style|svg)\b.*?</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")


@dataclass(kw_only=True, slots=True)
class Console:
    """A signed-in reader."""

    http: httpx2.AsyncClient

    async def load(self, path: str) -> str:
        """Load a page below /console; empty if there is none."""
        answer = await self.http.get(f"/console{path}")
        return answer.text if answer.is_success else ""

    async def read(self, path: str) -> str:
        """Read a page: its text, in one line."""
        return to_text(await self.load(path))


def to_text(page: str) -> str:
    return " ".join(html.unescape(_TAG.sub(" ", _UNREAD.sub(" ", page))).split())


async def open_console(sandbox: Sandbox, dev: ChildProcess) -> Console:
    """Sign in by the link that the terminal shows."""
    found = _LINK.search(dev.log.read_text())
    if found is None:
        raise RuntimeError("deputize dev shows no link to the console")
    http = httpx2.AsyncClient(
        base_url=found[1].partition("/console")[0], follow_redirects=True, trust_env=False, timeout=60.0
    )
    sandbox.add_cleanup(http.aclose)
    (await http.get(found[1])).raise_for_status()
    return Console(http=http)
