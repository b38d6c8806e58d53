"""The console's pages as interfaces: a session in the browser's cookie opens them, and forms that belong to that
session.

Anyone who holds a session can be made to send a form by any page they look at, so forms from elsewhere are tried as
well.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlencode

from deputize.core.errors import PermissionDenied, SignInFailed
from deputize.core.settings.urls import (
    ACCOUNTS_PAGE_PATH,
    AGENTS_PAGE_PATH,
    APPROVALS_PAGE_PATH,
    AUDIT_PAGE_PATH,
    CALLS_PAGE_PATH,
    CONSOLE_PATH,
    ERROR_CODES_PAGE_PATH,
    FLOWS_PAGE_PATH,
    LINK_CALLBACK_PATH,
    POLICIES_PAGE_PATH,
    SIGN_OUT_PATH,
    SWITCHES_PAGE_PATH,
    TOOLS_PAGE_PATH,
)
from deputize.interfaces.console.cookies import SESSION
from deputize.interfaces.console.pages import LIVE_PATH
from proofs.confused_deputy.endpoints import FORM, TokenEndpoint, TryResult, build_carriers
from proofs.confused_deputy.refusals import read_slug
from proofs.confused_deputy.testbed import FOREIGN_ORIGIN, POLICIES, SWITCHED_TOOL
from proofs.kit.http_client import HttpConnection

_CALL, _SERVER = f"{CALLS_PAGE_PATH}/{{call_id}}", f"{ACCOUNTS_PAGE_PATH}/{{server}}"
_REVOKE = f"{AGENTS_PAGE_PATH}/grants/{{grant_id}}/revoke"
_OFF, _ON = f"{SWITCHES_PAGE_PATH}/off", f"{SWITCHES_PAGE_PATH}/on"
_SIMULATE, _BACKTEST = f"{POLICIES_PAGE_PATH}/simulate", f"{POLICIES_PAGE_PATH}/backtest"
APPROVAL_PATH = f"{APPROVALS_PAGE_PATH}/{{approval_id}}"
_PAGES = (
    CONSOLE_PATH, f"{CONSOLE_PATH}/search", f"{ERROR_CODES_PAGE_PATH}/{{code}}", CALLS_PAGE_PATH, LIVE_PATH, _CALL,
    f"{_CALL}/cancel", f"{_CALL}/retry", f"{_CALL}/undo", f"{FLOWS_PAGE_PATH}/{{flow_id}}", AUDIT_PAGE_PATH,
    f"{AUDIT_PAGE_PATH}/export", f"{AUDIT_PAGE_PATH}/{{entry_id}}", TOOLS_PAGE_PATH, f"{TOOLS_PAGE_PATH}/{{name}}",
    POLICIES_PAGE_PATH, _SIMULATE, _BACKTEST, AGENTS_PAGE_PATH, _REVOKE, SWITCHES_PAGE_PATH, _OFF, _ON, SIGN_OUT_PATH,
    APPROVALS_PAGE_PATH, APPROVAL_PATH, ACCOUNTS_PAGE_PATH, LINK_CALLBACK_PATH, f"{_SERVER}/changes",
)  # fmt: skip
_TOKEN = "form_token"
_FORM_TOKEN_PATTERN = re.compile(rf'name="{_TOKEN}" value="([^"]+)"'.encode())
# As long and of the same letters as a real one.
_GUESSED_TOKEN = "0123456789ab" * 4


def list_page_endpoints(url: str, form_token: str, values: Mapping[str, str]) -> list[TokenEndpoint]:
    """Every page and form behind a sign-in. `values` fills in what their paths need, and what a person saw."""
    switch, decision = {"kind": "tool", "value": SWITCHED_TOOL}, {"binding": values["binding"], "reason": "seen"}
    queries = {f"{CONSOLE_PATH}/search": {"q": "effect"}, f"{AUDIT_PAGE_PATH}/export": {"format": "csv"}, _ON: switch}
    acted_on = {
        f"{_CALL}/cancel": {"call_id": values["open_call"]}, f"{_CALL}/retry": {"call_id": values["canceled_call"]},
    }  # fmt: skip
    forms: dict[str, Mapping[str, str]] = {
        f"{APPROVAL_PATH}/approve": decision, f"{APPROVAL_PATH}/deny": decision, SIGN_OUT_PATH: {},
        f"{_SERVER}/link": {}, f"{_SERVER}/unlink": {},
        f"{_CALL}/cancel": {}, f"{_CALL}/retry": {}, f"{_CALL}/undo": {"digest": values["digest"]},
        _SIMULATE: {"tool": values["name"], "user": "user-0", "arguments": '{"word": "a"}'},
        _BACKTEST: {"file": "policies/proof.cedar", "text": POLICIES, "days": "1"}, _REVOKE: {"reason": "seen"},
        _OFF: {**switch, "reason": "seen"}, _ON: switch,
    }  # fmt: skip
    return [
        *(
            TokenEndpoint(name=f"GET {path}", method="GET", path=_fill_path(path, values, queries.get(path, {})),
                          cookie=SESSION)
            for path in _PAGES
        ),
        *(
            build_form_endpoint(url, path, form_token, form, {**values, **acted_on.get(path, {})})
            for path, form in forms.items()
        ),
    ]  # fmt: skip


def build_form_endpoint(
    url: str, path: str, form_token: str, form: Mapping[str, str], values: Mapping[str, str]
) -> TokenEndpoint:
    """A form as a browser sends it from the page that it is on."""
    return TokenEndpoint(
        name=f"POST {path}",
        method="POST",
        path=_fill_path(path, values, {}),
        headers={"origin": url, "sec-fetch-site": "same-origin", "content-type": FORM},
        cookie=SESSION,
        form={_TOKEN: form_token, **form},
    )


def _fill_path(path: str, values: Mapping[str, str], query: Mapping[str, str]) -> str:
    return path.format_map(values) + (f"?{urlencode(query)}" if query else "")


async def fetch_form_token(url: str, session: str) -> str:
    """What every form of this session carries."""
    http = HttpConnection.for_url(url)
    answer = await http.get(SIGN_OUT_PATH, cookie=f"{SESSION}={session}")
    http.close()
    match = _FORM_TOKEN_PATTERN.search(answer.body)
    if match is None:
        raise RuntimeError(f"a session opened no page: {answer.status} {answer.body[:300]!r}")
    return match[1].decode()


async def try_tokens_on_pages(
    url: str, endpoints: Sequence[TokenEndpoint], session: str, token: str, result: TryResult
) -> None:
    """A good token everywhere but in a browser's session, and a good session in forms that are not its own."""
    http, bearer_headers = HttpConnection.for_url(url), {"authorization": f"Bearer {token}"}
    for endpoint in endpoints:
        for carrier in build_carriers(token):
            answer = await endpoint.send_misplaced(http, carrier, token)
            _record_answer(
                result, f"misplaced: {carrier} at {endpoint.name}", read_slug(answer), SignInFailed.spec.slug
            )
        answer = await http.send(
            endpoint.method, endpoint.path, headers={**endpoint.headers, **bearer_headers}, body=endpoint.request_body
        )
        _record_answer(
            result, f"misplaced: a bearer token at {endpoint.name}", read_slug(answer), SignInFailed.spec.slug
        )
        for label, foreign_endpoint in _build_foreign_forms(endpoint) if endpoint.form else ():
            answer = await foreign_endpoint.send_token(http, session)
            _record_answer(
                result, f"foreign: {label} at {endpoint.name}", read_slug(answer), PermissionDenied.spec.slug
            )
        if endpoint.form and endpoint.path.startswith(APPROVALS_PAGE_PATH):
            # Where only what the code of a ticket opened may stand.
            body = urlencode({**endpoint.form, "session": session}).encode()
            answer = await http.send(endpoint.method, endpoint.path, headers=endpoint.headers, body=body)
            _record_answer(
                result,
                f"misplaced: a session in the form at {endpoint.name}",
                read_slug(answer),
                SignInFailed.spec.slug,
            )
    http.close()


def _build_foreign_forms(endpoint: TokenEndpoint) -> Iterator[tuple[str, TokenEndpoint]]:
    """The same form as someone else's page would have a browser send it."""
    own_headers = {name: value for name, value in endpoint.headers.items() if name == "content-type"}
    origins = {
        "no origin": {}, "another origin": {"origin": FOREIGN_ORIGIN}, "the origin null": {"origin": "null"},
        "another site": {"sec-fetch-site": "cross-site"}, "a site beside": {"sec-fetch-site": "same-site"},
        "our origin, said by another site": {**endpoint.headers, "sec-fetch-site": "cross-site"},
        "our site, said by another origin": {**endpoint.headers, "origin": FOREIGN_ORIGIN},
    }  # fmt: skip
    for label, origin_headers in origins.items():
        yield label, replace(endpoint, headers={**own_headers, **origin_headers})
    rest = {name: value for name, value in endpoint.form.items() if name != _TOKEN} or {"reason": "seen"}
    for label, token in (
        ("no form token", {}),
        ("an empty one", {_TOKEN: ""}),
        ("a guessed one", {_TOKEN: _GUESSED_TOKEN}),
    ):
        yield label, replace(endpoint, form={**token, **rest})


def _record_answer(result: TryResult, what: str, slug: str, expected_slug: str) -> None:
    result.try_count += 1
    result.refusals[slug] += 1
    if slug != expected_slug:
        result.accepted_count += 1
        result.add_sample(f"accepted: {what}: {slug or 'no problem'}")
