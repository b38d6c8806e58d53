"""Pages in a browser, shown as an agent shows them: what they embed, ask for by scripts, and lead to.

For the operator of this place every host is listed, so that the check of addresses alone decides. Without Chromium or
bubblewrap there is no such place, and the tests of the proxy hold its code.
"""

import sys
import tempfile
from functools import partial
from html import escape
from itertools import count
from pathlib import Path

import orjson

from deputize.core.contract.tools import ToolContext
from deputize.core.errors import Problem
from deputize.execute.browser.page_proxy import PageProxy
from deputize.execute.browser.process import find_chromium
from deputize.execute.browser.sessions import NEW_SESSION, BrowserSessions
from deputize.execute.page_client import ListedHosts, read_target
from deputize.sandboxes.client import SandboxClient
from deputize.sandboxes.namespaces import find_bubblewrap
from deputize.tools.browser import page as pages
from proofs.ssrf.places import Place
from proofs.ssrf.sites import ATTACKER_URL, Sites

_SECONDS = 10.0
_COVERS = ("execute/browser/page_proxy.py Egress", "execute/browser/page_proxy.py egress.exchange")
_CONTEXT = ToolContext(
    call_id="1", tenant="dev", user="ana", agent="bot", session=None, key="k", attempt=1, seconds_left=50.0,
    traceparent=None, credential=None,
)  # fmt: skip
# How a page has a browser ask for a URL without anybody's doing; each attempt takes the next one beside scripts.
_ELEMENTS = (
    '<img src="{url}">', '<iframe src="{url}"></iframe>', '<script src="{url}"></script>',
    '<link rel="stylesheet" href="{url}">', '<link rel="prefetch" href="{url}">', '<object data="{url}"></object>',
    '<link rel="preconnect" href="{url}">', '<meta http-equiv="refresh" content="0;url={url}">',
    '<style>body {{ background: url("{url}") }}</style>', '<svg><image href="{url}"/></svg>',
    '<form method="post" action="{url}"></form><script>document.forms[0].submit()</script>',
)  # fmt: skip
_SCRIPT = """
const url = %s, tries = [
  () => fetch(url, {mode: "no-cors", method: "POST", body: "x"}), () => fetch(url, {mode: "no-cors"}),
  () => navigator.sendBeacon(url, "x"), () => new EventSource(url), () => window.open(url),
  () => new WebSocket(url.replace(/^http/, "ws")),
  () => { const asked = new XMLHttpRequest(); asked.open("PUT", url); asked.send("x") },
];
for (const each of tries) try { Promise.resolve(each()).catch(() => 0) } catch {}
setTimeout(() => { location = url }, 150);
"""


class _EveryHost(ListedHosts):
    """A list that names every host, none of them as private."""

    def require(self, url: str) -> tuple[str, bool]:
        return read_target(url)[1], False


class BrowserPlaces:
    """A browser session, which shows the page of each attempt."""

    def __init__(self, sites: Sites, program: str) -> None:
        self._sites = sites
        self._numbers = count()
        self._session = NEW_SESSION
        # Where every user can reach it, until this process ends.
        self._folder = tempfile.TemporaryDirectory(dir="/tmp", prefix="proof-browser-")
        Path(self._folder.name).chmod(0o755)
        listed = _EveryHost("a proof", ())
        self._sessions = BrowserSessions(
            SandboxClient(Path(self._folder.name, "sandboxes"), accept_weak_limits=True, accept_shared_user=True),
            program,
            listed,
            partial(PageProxy, listed, seconds=_SECONDS),
            per_caller=1,
            minutes=240,
            memory_bytes=1_073_741_824,
            seconds=50,
        )

    async def show(self, url: str) -> None:
        """Show a page that asks for a URL in many ways, and leads there itself."""
        element = _ELEMENTS[next(self._numbers) % len(_ELEMENTS)].format(url=escape(url))
        script = _SCRIPT % orjson.dumps(url).decode().replace("<", "\\u003c")
        content = f"<!doctype html><body><script>{script}</script>{element}".encode(errors="replace")
        page_url = self._sites.publish(ATTACKER_URL, lambda _: content)
        problem: Problem | None = None
        try:
            async with self._sessions.use(_CONTEXT, self._session, None) as page:
                self._session = page.session
                try:
                    await pages.navigate(page, page_url)
                except Problem as refusal:
                    problem = refusal
        except Problem:
            # That browser has ended, or computes forever.
            self._session = NEW_SESSION
            raise
        if problem is not None:
            raise problem


def list_browser_places(sites: Sites) -> list[Place]:
    """List the place of browsers, if this host can run one."""
    program = find_chromium()
    if program is None or find_bubblewrap() is None:
        print("web.browser: left out, because Chromium or bubblewrap is not installed", file=sys.stderr)
        return []
    return [Place(name="web.browser", covers=_COVERS, attempt=BrowserPlaces(sites, program).show, is_named=False)]
