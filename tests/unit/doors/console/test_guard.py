"""Forms from elsewhere, forms of another sign-in, and cookies too large for one."""

from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from deputize.core.errors import Malformed, PermissionDenied, SignInFailed, TooLarge, UnsupportedMedia
from deputize.doors.console import cookies
from deputize.doors.console.guard import FORM, read_form, require_form_token

pytestmark = pytest.mark.requirement("GOV-3")

ORIGIN = "https://gateway.example"
OURS = {"origin": ORIGIN, "sec-fetch-site": "same-origin", "content-type": FORM}


def posted(body: bytes, headers: dict[str, str]) -> Request:
    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": sent}, receive)


async def read(body: bytes, **headers: str | None) -> dict[str, str]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    merged = {name: value for name, value in {**OURS, **sent}.items() if value is not None}
    return await read_form(posted(body, merged), origin=ORIGIN)


async def test_a_form_of_ours_is_read() -> None:
    assert await read(b"a=1&b=x+y%C3%A9&c=") == {"a": "1", "b": "x yé", "c": ""}
    assert await read(b"a=1", origin=None) == {"a": "1"}
    assert await read(b"a=1", sec_fetch_site=None) == {"a": "1"}
    assert await read(b"") == {}


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
        await read(b"a=1", **headers)


@pytest.mark.parametrize(
    ("body", "headers", "problem"),
    [
        (b"a=1", {"content_type": "text/plain"}, UnsupportedMedia),
        (b"a=1", {"content_type": "multipart/form-data; boundary=x"}, UnsupportedMedia),
        (b"a=1&a=2", {}, Malformed),
        (b"a", {}, Malformed),
        (b"a=%ff", {}, Malformed),
        (b"\xff=1", {}, Malformed),
        (b"&".join(b"%d=1" % number for number in range(17)), {}, Malformed),
        (b"a=" + b"x" * 65_536, {}, TooLarge),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_what_is_no_form_is_refused(body: bytes, headers: dict[str, str], problem: type[Exception]) -> None:
    with pytest.raises(problem):
        await read(body, **headers)


@pytest.mark.parametrize("sent", [None, "", "tokem", "token ", "é"])
def test_a_form_of_another_sign_in_is_not_heard(sent: str | None) -> None:
    require_form_token("token", "token")
    with pytest.raises(PermissionDenied):
        require_form_token(sent, "token")


def browser(response: Response) -> dict[str, str]:
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
    cookies.keep(response, cookies.SESSION, value, secure=secure, seconds=900)
    kept = browser(response)
    assert all(name.startswith("__Host-") == secure for name in kept)
    assert all(
        ("Secure" in header.decode()) == secure for name, header in response.raw_headers if name == b"set-cookie"
    )
    assert cookies.kept(kept, cookies.SESSION, secure=secure) == value
    assert cookies.kept(kept, cookies.SESSION, secure=not secure) == ""


def test_a_shorter_one_leaves_nothing_of_a_longer_one_and_forgetting_leaves_nothing() -> None:
    response = Response()
    cookies.keep(response, cookies.SESSION, "v", secure=True, seconds=900)
    gone = [value for name, value in response.raw_headers if name == b"set-cookie" and b"Max-Age=0" in value]
    assert len(gone) == 3
    emptied = Response()
    cookies.forget(emptied, cookies.SESSION, secure=True)
    assert browser(emptied) == {}
    assert len([1 for name, _ in emptied.raw_headers if name == b"set-cookie"]) == 4


def test_more_than_a_browser_keeps_is_told_and_not_cut() -> None:
    with pytest.raises(SignInFailed, match="more groups"):
        cookies.keep(Response(), cookies.SESSION, "v" * 15_201, secure=True, seconds=900)
