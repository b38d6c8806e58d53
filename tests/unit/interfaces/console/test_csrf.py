"""Forms from elsewhere, forms of another sign-in, and cookies too large for one."""

from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from deputize.core.errors import MalformedRequest, PermissionDenied, RequestTooLarge, SignInFailed, UnsupportedMedia
from deputize.interfaces.console import cookies
from deputize.interfaces.console.csrf import FORM_MEDIA_TYPE, read_form, require_form_token

pytestmark = pytest.mark.requirement("GOV-3")

ORIGIN = "https://gateway.example"
OURS = {"origin": ORIGIN, "sec-fetch-site": "same-origin", "content-type": FORM_MEDIA_TYPE}


def make_request(body: bytes, headers: dict[str, str]) -> Request:
    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": sent}, receive)


async def parse_form(body: bytes, **headers: str | None) -> dict[str, str]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    merged = {name: value for name, value in {**OURS, **sent}.items() if value is not None}
    return await read_form(make_request(body, merged), origin=ORIGIN)


async def test_a_form_of_ours_is_read() -> None:
    assert await parse_form(b"a=1&b=x+y%C3%A9&c=") == {"a": "1", "b": "x yé", "c": ""}
    assert await parse_form(b"a=1", origin=None) == {"a": "1"}
    assert await parse_form(b"a=1", sec_fetch_site=None) == {"a": "1"}
    assert await parse_form(b"") == {}


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://gateway.example"},
        {"origin": "https://gateway.example:8443"},
        {"origin": "https://gateway.example.evil.example"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
        {"origin": None, "sec_fetch_site": "cross-site"},
        {"origin": None, "sec_fetch_site": None},
    ],
    ids=str,
)
async def test_a_form_from_elsewhere_is_not_heard(headers: dict[str, str | None]) -> None:
    with pytest.raises(PermissionDenied):
        await parse_form(b"a=1", **headers)


@pytest.mark.parametrize(
    ("body", "headers", "problem"),
    [
        (b"a=1", {"content_type": "text/plain"}, UnsupportedMedia),
        (b"a=1", {"content_type": "multipart/form-data; boundary=x"}, UnsupportedMedia),
        (b"a=1&a=2", {}, MalformedRequest),
        (b"a", {}, MalformedRequest),
        (b"a=%ff", {}, MalformedRequest),
        (b"\xff=1", {}, MalformedRequest),
        (b"&".join(b"%d=1" % number for number in range(17)), {}, MalformedRequest),
        (b"a=" + b"x" * 65_536, {}, RequestTooLarge),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_what_is_no_form_is_refused(body: bytes, headers: dict[str, str], problem: type[Exception]) -> None:
    with pytest.raises(problem):
        await parse_form(body, **headers)


@pytest.mark.parametrize("sent", [None, "", "tokem", "token ", "é"])
def test_a_form_of_another_sign_in_is_not_heard(sent: str | None) -> None:
    require_form_token("token", "token")
    with pytest.raises(PermissionDenied):
        require_form_token(sent, "token")


def browser_cookies(response: Response) -> dict[str, str]:
    """What a browser keeps of an answer."""
    kept = {}
    for name, value in response.raw_headers:
        if name == b"set-cookie":
            pair, *attributes = value.decode().split("; ")
            assert {"httponly", "path=/", "samesite=lax"} <= {each.lower() for each in attributes}
            if "max-age=0" not in [each.lower() for each in attributes]:
                key, _, content = pair.partition("=")
                kept[key] = content
                assert len(value) <= 4096
    return kept


@pytest.mark.parametrize("length", [1, 3800, 3801, 15_200])
@pytest.mark.parametrize("secure", [True, False])
def test_what_is_kept_comes_back_whole_however_long(length: int, secure: bool) -> None:
    response, value = Response(), "v" * length
    cookies.set_cookie(response, cookies.SESSION, value, secure=secure, seconds=900)
    kept = browser_cookies(response)
    assert all(name.startswith("__Host-") == secure for name in kept)
    assert all(
        ("Secure" in header.decode()) == secure for name, header in response.raw_headers if name == b"set-cookie"
    )
    assert cookies.read_cookie(kept, cookies.SESSION, secure=secure) == value
    assert cookies.read_cookie(kept, cookies.SESSION, secure=not secure) == ""


def test_a_shorter_one_leaves_nothing_of_a_longer_one_and_forgetting_leaves_nothing() -> None:
    response = Response()
    cookies.set_cookie(response, cookies.SESSION, "v", secure=True, seconds=900)
    gone = [value for name, value in response.raw_headers if name == b"set-cookie" and b"Max-Age=0" in value]
    assert len(gone) == 3
    emptied = Response()
    cookies.delete_cookie(emptied, cookies.SESSION, secure=True)
    assert browser_cookies(emptied) == {}
    assert len([1 for name, _ in emptied.raw_headers if name == b"set-cookie"]) == 4


def test_an_oversized_cookie_is_an_error_and_not_truncated() -> None:
    with pytest.raises(SignInFailed, match="too many groups"):
        cookies.set_cookie(Response(), cookies.SESSION, "v" * 15_201, secure=True, seconds=900)
