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
from deputize.core.settings.urls import ACCOUNTS_PAGE_PATH, LINK_CALLBACK_PATH, SIGN_OUT_PATH
from deputize.interfaces.console.cookies import SESSION
from proofs.confused_deputy.endpoints import FORM, TokenEndpoint, TryResult, build_carriers
from proofs.confused_deputy.refusals import read_slug
from proofs.confused_deputy.testbed import FOREIGN_ORIGIN, SERVER_NAME
from proofs.kit.http_client import HttpConnection

_HOME = "/console/approvals"
_ONE = f"{_HOME}/{{approval_id}}"
_TOKEN = "form_token"
_FORM_TOKEN_PATTERN = re.compile(rf'name="{_TOKEN}" value="([^"]+)"'.encode())
# As long and of the same letters as a real one.
_GUESSED_TOKEN = "0123456789ab" * 4


def list_page_endpoints(url: str, ticket: str, form: Mapping[str, str]) -> list[TokenEndpoint]:
    """Every page and form behind a sign-in; `filled` is what the forms about this approval request send."""
    origin = {"origin": url, "sec-fetch-site": "same-origin", "content-type": FORM}
    own_form = {_TOKEN: form[_TOKEN]}
    forms = {f"{_ONE}/approve": form, f"{_ONE}/deny": form, "/console/sign-out": own_form}
    forms |= {f"{ACCOUNTS_PAGE_PATH}/{{server}}/link": own_form, f"{ACCOUNTS_PAGE_PATH}/{{server}}/unlink": own_form}
    get_paths = (_HOME, _ONE, ACCOUNTS_PAGE_PATH, LINK_CALLBACK_PATH)
    get_endpoints = [TokenEndpoint(name=f"GET {path}", method="GET", path=path, cookie=SESSION) for path in get_paths]
    post_endpoints = [
        TokenEndpoint(name=f"POST {path}", method="POST", path=path, headers=origin, cookie=SESSION, form=form_fields)
        for path, form_fields in forms.items()
    ]
    return [
        replace(endpoint, path=endpoint.path.format(approval_id=ticket, server=SERVER_NAME))
        for endpoint in (*get_endpoints, *post_endpoints)
    ]


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
        if endpoint.form and endpoint.path.startswith(_HOME):
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
