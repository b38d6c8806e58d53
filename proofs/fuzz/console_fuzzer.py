"""The console's pages and forms, with everything in them that no browser sends: cookies, addresses, fields and bodies.

Which there are is read from the console itself. Whatever was written into an approval request, a page shows it as
text that can be seen, and tells the browser to run and fetch nothing.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from hypothesis import strategies as st

from deputize.core.settings.urls import ACCOUNTS_PAGE_PATH, LINK_CALLBACK_PATH, SIGN_IN_CALLBACK_PATH
from deputize.interfaces.console.app import build_console_app
from deputize.interfaces.console.cookies import SESSION, SIGN_IN
from deputize.interfaces.console.csrf import FORM_MEDIA_TYPE, SECURITY_HEADERS
from deputize.operations.gateway import Gateway
from proofs.fuzz.runner import Case, FuzzResult, run_cases
from proofs.fuzz.values import HOSTILE_TEXTS, MARK, ONE_IN_TEN, build_header_values, build_texts, mix_mostly
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.kit.sign_in_issuer import Browser

_HOME, _SIGN_OUT = "/console/approvals", "/console/sign-out"
_ONE = f"{_HOME}/{{approval_id}}"
_SERVER = "shop"
_OF_SERVER = f"{ACCOUNTS_PAGE_PATH}/{{server}}"
# Codes are shown by the terminal of a gateway in development, and taken nowhere else; accounts are linked at servers,
# and there is none here.
_NEVER_DONE = {f"POST {_ONE}/code", f"POST {_OF_SERVER}/link", f"POST {_OF_SERVER}/unlink", f"GET {LINK_CALLBACK_PATH}"}
_FORM_TOKEN = re.compile(rb'name="form_token" value="([^"]+)"')
_QUERIES = ("to", "again", "level", "before", "state", "code", "iss", "error")
_FIELDS = ("form_token", "binding", "reason", "session", "code")
# Our own script, as the frame of a page names it.
_OWN_SCRIPT = re.compile(r'<script src="/console/script-[0-9a-f]{16}\.js" nonce="[A-Za-z0-9+/=]{24}" defer></script>')
_ACTIVE_CONTENT = re.compile(rf"<\w+[^>]*(?:{MARK}|\son\w+\s*=)|<script|javascript:", re.IGNORECASE)
_LONGEST = 3000
_NO_BINDING = "0" * 64


def list_routes() -> list[str]:
    """Method and path of everything the console serves."""
    route_objects: list[Any] = list(build_console_app(_refuse_to_open, asyncio.Event()).routes)
    return sorted(f"{method} {route.path}" for route in route_objects for method in route.methods - {"HEAD"})


def _refuse_to_open() -> Gateway:
    raise RuntimeError("this composition is only looked at")


async def fuzz_pages(
    url: str, issuer: str, browser: Browser, bindings: Mapping[str, str], *, cases: int, seed: int
) -> FuzzResult:
    """So many cases. `seen` are approval requests that anyone who is signed in may decide, each with its binding."""
    http = HttpConnection.for_url(url)
    page = await http.get(_HOME, cookie=f"{SESSION}={browser.session}")
    token_match = _FORM_TOKEN.search(page.body)
    if token_match is None:
        raise RuntimeError(f"the console showed no page: {page.status} {page.body[:300]!r}")
    fuzzer = PageFuzzer(url, issuer, browser, bindings, token_match[1].decode())
    result = await run_cases(
        http, fuzzer.build_plain_cases(), fuzzer.build_cases(), fuzzer.find_fault, count=cases, number=seed
    )
    result.never_done = sorted(set(fuzzer.routes) - fuzzer.done_routes - _NEVER_DONE)
    http.close()
    return result


class PageFuzzer:
    """What is sent, and how its answer is judged; a case's request is its route."""

    def __init__(self, url: str, issuer: str, browser: Browser, bindings: Mapping[str, str], form_token: str) -> None:
        self.routes = list_routes()
        self.done_routes: set[str] = set()
        self._url, self._issuer = url, issuer
        self._browser = browser
        self._bindings = dict(bindings)
        self._form_token = form_token

    def build_plain_cases(self) -> list[Case]:
        """One proper request each, about approval requests that are still to be decided."""
        cookie_headers = {"cookie": f"{SESSION}={self._browser.session}"}
        form_headers = {**cookie_headers, "origin": self._url, "content-type": FORM_MEDIA_TYPE}
        unused_tickets = iter(self._bindings.items())
        cases = []
        for route in self.routes:
            method, _, path = route.partition(" ")
            if method == "GET":
                is_callback = route.endswith(SIGN_IN_CALLBACK_PATH)
                headers = {"cookie": f"{SIGN_IN}={self._browser.login_cookie}"} if is_callback else cookie_headers
                path = self._browser.callback_path if is_callback else _fill_path(path, next(iter(self._bindings)))
                cases.append(Case(path=path, headers=headers, method=method, request=route))
                continue
            ticket, binding = next(unused_tickets)
            form = {"form_token": self._form_token}
            form |= {} if path == _SIGN_OUT else {"binding": binding, "reason": HOSTILE_TEXTS[0]}
            body = urlencode(form).encode()
            cases.append(
                Case(path=_fill_path(path, ticket), body=body, headers=form_headers, method=method, request=route)
            )
        return cases

    def build_cases(self) -> st.SearchStrategy[Case]:
        return _build_cases(self.routes, self._browser, self._bindings, self._form_token, self._url)

    def find_fault(self, case: Case, answer: HttpResponse) -> str | None:
        if answer.status >= 500:
            return "server error"
        if answer.status < 400:
            self.done_routes.add(case.request)
        media = answer.headers.get("content-type", "").partition(";")[0]
        if media == "application/problem+json" and answer.status == 400:
            # What is no address to any page is refused before one is looked for.
            return None
        if media == "text/plain" and answer.status in (408, 414, 431):
            # What exceeds the limits of connections is refused before any page is looked for.
            return None
        missing = {name for name, value in SECURITY_HEADERS.items() if answer.headers.get(name) != value}
        if missing - ({"cache-control"} if media == "text/css" else set()):
            return "a page without its headers"
        if answer.status == 303:
            return self._find_redirect_fault(answer.headers.get("location", ""))
        if media != "text/html":
            return None if media == "text/css" else f"a page of {media}"
        return find_page_fault(answer.body)

    def _find_redirect_fault(self, location: str) -> str | None:
        """People are sent to pages of ours, and to where they sign in."""
        target = urlsplit(location)
        is_ours = not target.scheme and not target.netloc and target.path.startswith("/console")
        return None if is_ours or location.startswith(f"{self._issuer}/auth?") else "a way to elsewhere"


def _fill_path(path: str, ticket: str) -> str:
    return path.format(
        approval_id=ticket, call_id=ticket, entry_id=ticket, grant_id=ticket, name="shop.rename_user", server=_SERVER
    )


def find_page_fault(body: bytes) -> str | None:
    """Nothing in it runs, and nothing in it hides."""
    try:
        page = body.decode()
    except UnicodeDecodeError:
        return "a page that is not UTF-8"
    if _ACTIVE_CONTENT.search(_OWN_SCRIPT.sub("", page, count=1)):
        return "a page that runs what somebody wrote"
    if not all(each.isprintable() or each == "\n" for each in page):
        return "a page with something hidden in it"
    return None


@st.composite
def _build_cases(
    draw: st.DrawFn,
    known_routes: Sequence[str],
    browser: Browser,
    bindings: Mapping[str, str],
    form_token: str,
    url: str,
) -> Case:
    route = draw(st.sampled_from(known_routes))
    method, _, path = route.partition(" ")
    path = path.replace("{approval_id}", draw(_build_ids(list(bindings)))).replace(
        "{server}", draw(_build_ids([_SERVER]))
    )
    # Of the very ticket, where there is one.
    binding = bindings.get(path.split("/")[3], _NO_BINDING) if path.startswith(f"{_HOME}/") else _NO_BINDING
    words = mix_mostly(st.sampled_from(HOSTILE_TEXTS), build_texts().map(lambda text: text[:_LONGEST]))
    query = {name: draw(words) for name in _QUERIES if draw(ONE_IN_TEN)}
    path = f"{path}?{_encode_form(query)}" if query else path
    session = browser.session if not draw(ONE_IN_TEN) else draw(_build_broken_cookies(browser.session))
    headers = {"cookie": f"{SESSION}={session}; {SIGN_IN}={draw(_build_broken_cookies(browser.login_cookie))}"}
    if method == "GET":
        return Case(path=path, headers=headers, method=method, request=route)
    proper = {"form_token": st.just(form_token), "binding": st.just(binding), "reason": words}
    fields = {name: draw(proper.get(name, words)) for name in _FIELDS if name in proper or draw(ONE_IN_TEN)}
    fields |= {draw(st.sampled_from(_FIELDS)): draw(words)} if draw(ONE_IN_TEN) else {}
    body = draw(st.binary(max_size=200)) if draw(ONE_IN_TEN) else _encode_form(fields).encode()
    headers |= {"content-type": draw(build_header_values()) if draw(ONE_IN_TEN) else FORM_MEDIA_TYPE}
    headers |= {"origin": draw(build_header_values()) if draw(ONE_IN_TEN) else url}
    return Case(path=path, body=body, headers=headers, method=method, request=route)


def _build_ids(known_ids: Sequence[str]) -> st.SearchStrategy[str]:
    known_strategy = st.sampled_from(known_ids)
    others = st.one_of(st.sampled_from(HOSTILE_TEXTS), build_texts()).map(lambda text: text.replace("/", "")[:200])
    quoted_texts = others.filter(lambda text: text.strip(". ")).map(lambda text: _quote_path(text))
    return mix_mostly(known_strategy, st.one_of(known_strategy.map(str.upper), quoted_texts))


def _build_broken_cookies(cookie: str) -> st.SearchStrategy[str]:
    """A cookie as it is, cut, doubled, changed in one place, or not ours at all."""
    places = st.integers(0, len(cookie) - 1)
    changed_cookies = places.map(lambda at: cookie[:at] + ("A" if cookie[at] != "A" else "B") + cookie[at + 1 :])
    odd = build_header_values().map(lambda text: text.replace(";", ""))
    return st.one_of(st.just(cookie), changed_cookies, places.map(lambda at: cookie[:at]), st.just(cookie * 2), odd)


def _encode_form(fields: Mapping[str, str]) -> str:
    return urlencode({name: value.encode("utf-8", "surrogatepass") for name, value in fields.items()})


def _quote_path(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")
