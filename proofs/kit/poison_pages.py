"""The console's pages and forms, with everything in them that no browser sends: cookies, addresses, fields and bodies.

Which there are is read from the console itself. Whatever was written into a ticket, a page shows it as text that can be
seen, and tells the browser to run and fetch nothing. Above: `proofs.fuzz`. Below: `fuzzing`, `people`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from hypothesis import strategies as st

from deputize.doors.console.app import console_app
from deputize.doors.console.cookies import BEGUN, SESSION
from deputize.doors.console.guard import FORM, HEADERS
from deputize.lifecycle.console import CALLBACK
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.servers.links import BACK, PAGE
from proofs.kit.fuzzing import Case, Fuzzed, send_all
from proofs.kit.people import Browser
from proofs.kit.poison_values import HOSTILE, MARK, ONE_IN_TEN, header_values, mostly, texts
from proofs.kit.wire import Answer, Line

_HOME, _SIGN_OUT = "/console/tickets", "/console/sign-out"
_ONE = f"{_HOME}/{{ticket_id}}"
_SERVER = "shop"
_OF_SERVER = f"{PAGE}/{{server}}"
# Codes are shown by the terminal of a gateway in development, and taken nowhere else; accounts are linked at servers,
# and there is none here.
_NEVER_DONE = {f"POST {_ONE}/code", f"POST {_OF_SERVER}/link", f"POST {_OF_SERVER}/unlink", f"GET {BACK}"}
_FORM_TOKEN = re.compile(rb'name="form_token" value="([^"]+)"')
_QUERIES = ("to", "again", "level", "before", "state", "code", "iss", "error")
_FIELDS = ("form_token", "binding", "reason", "session", "code")
_RUNNING = re.compile(rf"<\w+[^>]*(?:{MARK}|\son\w+\s*=)|<script|javascript:", re.IGNORECASE)
_LONGEST = 3000
_NO_BINDING = "0" * 64


def routes() -> list[str]:
    """Method and path of everything the console serves."""
    found: list[Any] = list(console_app(_not_there).routes)
    return sorted(f"{method} {route.path}" for route in found for method in route.methods - {"HEAD"})


def _not_there() -> Gateway:
    raise RuntimeError("this composition is only looked at")


async def fuzz_pages(
    url: str, issuer: str, browser: Browser, seen: Mapping[str, str], *, cases: int, seed: int
) -> Fuzzed:
    """So many cases. `seen` are tickets that whoever is signed in may decide, each with its binding."""
    line = Line.to(url)
    page = await line.get(_HOME, cookie=f"{SESSION}={browser.session}")
    written = _FORM_TOKEN.search(page.body)
    if written is None:
        raise RuntimeError(f"the console showed no page: {page.status} {page.body[:300]!r}")
    pages = _Pages(url, issuer, browser, seen, written[1].decode())
    found = await send_all(line, pages.plain(), pages.cases(), pages.wrong_with, count=cases, number=seed)
    found.undone = sorted(set(pages.routes) - pages.done - _NEVER_DONE)
    line.close()
    return found


class _Pages:
    """What is sent, and how its answer is judged; a case's request is its route."""

    def __init__(self, url: str, issuer: str, browser: Browser, seen: Mapping[str, str], form_token: str) -> None:
        self.routes = routes()
        self.done: set[str] = set()
        self._url, self._issuer = url, issuer
        self._browser = browser
        self._seen = dict(seen)
        self._form_token = form_token

    def plain(self) -> list[Case]:
        """One proper request each, about tickets that are still to be decided."""
        signed_in = {"cookie": f"{SESSION}={self._browser.session}"}
        own = {**signed_in, "origin": self._url, "content-type": FORM}
        fresh = iter(self._seen.items())
        made = []
        for route in self.routes:
            method, _, path = route.partition(" ")
            if method == "GET":
                back = route.endswith(CALLBACK)
                headers = {"cookie": f"{BEGUN}={self._browser.begun}"} if back else signed_in
                path = self._browser.back if back else _about(path, next(iter(self._seen)))
                made.append(Case(path=path, headers=headers, method=method, request=route))
                continue
            ticket, binding = next(fresh)
            form = {"form_token": self._form_token}
            form |= {} if path == _SIGN_OUT else {"binding": binding, "reason": HOSTILE[0]}
            body = urlencode(form).encode()
            made.append(Case(path=_about(path, ticket), body=body, headers=own, method=method, request=route))
        return made

    def cases(self) -> st.SearchStrategy[Case]:
        return _cases(self.routes, self._browser, self._seen, self._form_token, self._url)

    def wrong_with(self, case: Case, answer: Answer) -> str | None:
        if answer.status >= 500:
            return "server error"
        if answer.status < 400:
            self.done.add(case.request)
        media = answer.headers.get("content-type", "").partition(";")[0]
        if media == "application/problem+json" and answer.status == 400:
            # What is no address to any page is refused before one is looked for.
            return None
        missing = {name for name, value in HEADERS.items() if answer.headers.get(name) != value}
        if missing - ({"cache-control"} if media == "text/css" else set()):
            return "a page without its headers"
        if answer.status == 303:
            return self._wrong_with_way(answer.headers.get("location", ""))
        if media != "text/html":
            return None if media == "text/css" else f"a page of {media}"
        return wrong_with_page(answer.body)

    def _wrong_with_way(self, location: str) -> str | None:
        """People are sent to pages of ours, and to where they sign in."""
        place = urlsplit(location)
        ours = not place.scheme and not place.netloc and place.path.startswith("/console")
        return None if ours or location.startswith(f"{self._issuer}/auth?") else "a way to elsewhere"


def _about(path: str, ticket: str) -> str:
    return path.format(ticket_id=ticket, server=_SERVER)


def wrong_with_page(body: bytes) -> str | None:
    """Nothing in it runs, and nothing in it hides."""
    try:
        page = body.decode()
    except UnicodeDecodeError:
        return "a page that is not UTF-8"
    if _RUNNING.search(page):
        return "a page that runs what somebody wrote"
    if not all(each.isprintable() or each == "\n" for each in page):
        return "a page with something hidden in it"
    return None


@st.composite
def _cases(
    draw: st.DrawFn, known: Sequence[str], browser: Browser, seen: Mapping[str, str], form_token: str, url: str
) -> Case:
    route = draw(st.sampled_from(known))
    method, _, path = route.partition(" ")
    path = path.replace("{ticket_id}", draw(_ids(list(seen)))).replace("{server}", draw(_ids([_SERVER])))
    # Of the very ticket, where there is one.
    binding = seen.get(path.split("/")[3], _NO_BINDING) if path.startswith(f"{_HOME}/") else _NO_BINDING
    words = mostly(st.sampled_from(HOSTILE), texts().map(lambda text: text[:_LONGEST]))
    asked = {name: draw(words) for name in _QUERIES if draw(ONE_IN_TEN)}
    path = f"{path}?{_encoded(asked)}" if asked else path
    session = browser.session if not draw(ONE_IN_TEN) else draw(_spoilt(browser.session))
    headers = {"cookie": f"{SESSION}={session}; {BEGUN}={draw(_spoilt(browser.begun))}"}
    if method == "GET":
        return Case(path=path, headers=headers, method=method, request=route)
    proper = {"form_token": st.just(form_token), "binding": st.just(binding), "reason": words}
    fields = {name: draw(proper.get(name, words)) for name in _FIELDS if name in proper or draw(ONE_IN_TEN)}
    fields |= {draw(st.sampled_from(_FIELDS)): draw(words)} if draw(ONE_IN_TEN) else {}
    body = draw(st.binary(max_size=200)) if draw(ONE_IN_TEN) else _encoded(fields).encode()
    headers |= {"content-type": draw(header_values()) if draw(ONE_IN_TEN) else FORM}
    headers |= {"origin": draw(header_values()) if draw(ONE_IN_TEN) else url}
    return Case(path=path, body=body, headers=headers, method=method, request=route)


def _ids(known: Sequence[str]) -> st.SearchStrategy[str]:
    there = st.sampled_from(known)
    others = st.one_of(st.sampled_from(HOSTILE), texts()).map(lambda text: text.replace("/", "")[:200])
    written = others.filter(lambda text: text.strip(". ")).map(lambda text: _quoted(text))
    return mostly(there, st.one_of(there.map(str.upper), written))


def _spoilt(kept: str) -> st.SearchStrategy[str]:
    """A cookie as it is, cut, doubled, changed in one place, or not ours at all."""
    places = st.integers(0, len(kept) - 1)
    changed = places.map(lambda at: kept[:at] + ("A" if kept[at] != "A" else "B") + kept[at + 1 :])
    odd = header_values().map(lambda text: text.replace(";", ""))
    return st.one_of(st.just(kept), changed, places.map(lambda at: kept[:at]), st.just(kept * 2), odd)


def _encoded(fields: Mapping[str, str]) -> str:
    return urlencode({name: value.encode("utf-8", "surrogatepass") for name, value in fields.items()})


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")
