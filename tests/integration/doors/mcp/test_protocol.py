"""The door's manners: what a request must be, in either era, before anything is done about it."""

import base64
from typing import Any

import pytest

from deputize.core.mcp import CLIENT_CAPABILITIES, HANDSHAKES, MODERN, PROTOCOL_VERSION, VERSIONS
from tests.integration.conftest import ADMIN, OTHER_ISSUER, PUBLIC_URL, Served
from tests.integration.doors.mcp.speaking import ACCEPT, OPENS, Speaker

_META = {PROTOCOL_VERSION: MODERN, CLIENT_CAPABILITIES: {}}
_HEADERS = {"accept": ACCEPT, "mcp-protocol-version": MODERN, "mcp-method": "tools/list"}


def _list(**more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": _META}, **more}


async def test_a_server_tells_what_it_can_do(served: Served) -> None:
    result = (await Speaker(served).ask("server/discover")).result
    assert result["supportedVersions"] == list(VERSIONS)
    assert set(result["capabilities"]) == {"tools", "extensions"}
    assert "calls_get" in result["instructions"]


@pytest.mark.parametrize("wanted", [*HANDSHAKES, "2024-11-05", "3000-01-01"])
async def test_a_handshake_is_answered_in_a_version_that_is_served(served: Served, wanted: str) -> None:
    speaker = Speaker(served, version=HANDSHAKES[0])
    told = {"protocolVersion": wanted, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    answer = await speaker.ask("initialize", told, headers={"mcp-protocol-version": None})
    assert answer.result["protocolVersion"] == (wanted if wanted in HANDSHAKES else HANDSHAKES[0])
    assert "mcp-session-id" not in answer.headers
    assert (await speaker.ask("ping")).result == {}


async def test_a_session_id_is_given_only_to_who_has_something_to_be_remembered_by(served: Served) -> None:
    told = {"protocolVersion": HANDSHAKES[0], "capabilities": OPENS}
    answer = await Speaker(served, version=HANDSHAKES[0]).ask("initialize", told)
    assert answer.headers["mcp-session-id"].startswith("url.")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"mcp-method": "tools/call"}, -32020),
        ({"mcp-method": None}, -32020),
        ({"mcp-method": "TOOLS/LIST"}, -32020),
        ({"mcp-protocol-version": None}, -32020),
        ({"mcp-protocol-version": "2027-01-01"}, -32020),
    ],
)
async def test_headers_that_say_something_else_are_refused(
    served: Served, change: dict[str, str | None], code: int
) -> None:
    answer = await Speaker(served).post(_list(), {**_HEADERS, **change})
    assert (answer.status, answer.error["code"], answer.told["id"]) == (400, code, 1)


async def test_the_name_in_the_header_may_be_encoded_and_must_be_the_same(served: Served) -> None:
    speaker = Speaker(served)
    name = "shop__list_users"
    encoded = f"=?base64?{base64.b64encode(name.encode()).decode()}?="
    for header in (encoded, name):
        assert (await speaker.call(name, {"limit": 1}, headers={"mcp-name": header})).structured == {"result": [0]}
    others = (None, "shop__get_user", "Shop__List_Users", "=?base64?!!?=", "=?base64?c2hvcA=?=")
    for other in others:
        assert (await speaker.call(name, {"limit": 1}, headers={"mcp-name": other})).error["code"] == -32020


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, -32700),
        (b"\xff\xfe", 400, -32700),
        ([_list()], 400, -32600),
        ("text", 400, -32600),
        (_list(jsonrpc="1.0"), 400, -32600),
        (_list(id=None), 400, -32600),
        (_list(id=1.5), 400, -32600),
        (_list(method=7), 400, -32600),
        (_list(params=[]), 400, -32600),
        (_list(params={}), 400, -32602),
        (_list(params={"_meta": {PROTOCOL_VERSION: MODERN}}), 400, -32602),
        (_list(params={"_meta": {CLIENT_CAPABILITIES: {}}}), 400, -32602),
        (_list(params={"_meta": _META, "cursor": "?"}), 400, -32602),
        (_list(params={"_meta": _META, "cursor": 7}), 400, -32602),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, 400, -32600),
    ],
)
async def test_what_is_no_request_is_told_what_is_wrong_with_it(
    served: Served, body: Any, status: int, code: int
) -> None:
    answer = await Speaker(served).post(body, _HEADERS)
    assert (answer.status, answer.error["code"]) == (status, code)


async def test_a_version_that_is_not_served_is_told_which_are(served: Served) -> None:
    meta = {**_META, PROTOCOL_VERSION: "2031-01-01"}
    answer = await Speaker(served).post(
        _list(params={"_meta": meta}), {**_HEADERS, "mcp-protocol-version": "2031-01-01"}
    )
    assert (answer.status, answer.error["code"]) == (400, -32022)
    assert answer.error["data"] == {"supported": list(VERSIONS), "requested": "2031-01-01"}


@pytest.mark.parametrize("version", [MODERN, HANDSHAKES[0]])
async def test_a_method_that_is_not_there_says_so(served: Served, version: str) -> None:
    for method in ("resources/subscribe", "logging/setLevel", "sampling/createMessage", "nothing"):
        answer = await Speaker(served, version=version).ask(method, {})
        assert (answer.status, answer.error["code"]) == (404 if version == MODERN else 200, -32601)


@pytest.mark.parametrize("version", [MODERN, HANDSHAKES[0]])
async def test_notifications_are_taken_note_of(served: Served, version: str) -> None:
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    answer = await Speaker(served).post(body, {"accept": ACCEPT, "mcp-protocol-version": version})
    assert (answer.status, answer.messages) == (202, [])


@pytest.mark.parametrize("verb", ["GET", "DELETE", "PUT"])
async def test_only_post_is_spoken(served: Served, verb: str) -> None:
    answer = await served.http.request(verb, "/mcp", headers={"authorization": f"Bearer {served.token()}"})
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream", "text/html", None])
async def test_a_client_takes_json_and_streams(served: Served, accept: str | None) -> None:
    headers = {**_HEADERS, "accept": accept or ""}
    assert (await Speaker(served).post(_list(), headers)).status == 406


async def test_pages_of_other_sites_are_not_answered(served: Served) -> None:
    speaker = Speaker(served)
    for origin, status in (
        ("https://evil.example", 403),
        ("null", 403),
        ("http://localhost:3000", 200),
        (PUBLIC_URL, 200),
    ):
        assert (await speaker.post(_list(), {**_HEADERS, "origin": origin})).status == status


@pytest.mark.requirement("GOV-1")
async def test_who_shows_no_good_token_learns_where_to_get_one(served: Served) -> None:
    where = f'resource_metadata="{PUBLIC_URL}/.well-known/oauth-protected-resource/mcp"'
    bare = await served.http.post("/mcp", json=_list(), headers={"accept": ACCEPT})
    assert (bare.status_code, bare.headers["www-authenticate"]) == (401, f'Bearer realm="deputize", {where}')
    bad = await Speaker(served, token="not.a.token").post(_list(), _HEADERS)
    assert (bad.status, bad.told["id"]) == (401, None)
    assert bad.headers["www-authenticate"] == f'Bearer realm="deputize", error="invalid_token", {where}'
    told = (await served.http.get("/.well-known/oauth-protected-resource/mcp")).json()
    assert told["resource"] == f"{PUBLIC_URL}/mcp"
    assert OTHER_ISSUER in told["authorization_servers"]


async def test_a_revoked_caller_is_told_to_sign_in_again_whatever_it_asks(served: Served) -> None:
    gone = served.token("gone")
    await served.post("/v1/revocations", {"kind": "user", "value": "gone"}, token=served.token(scopes=[ADMIN]))
    for version in (MODERN, HANDSHAKES[0]):
        speaker = Speaker(served, token=gone, version=version)
        for answer in (await speaker.ask("tools/list"), await speaker.call("shop__get_user", {"id": 1})):
            assert answer.status == 401
            assert "resource_metadata" in answer.headers["www-authenticate"]
            assert answer.error["data"]["error"]["slug"] == "revoked"


async def test_what_is_too_large_or_no_json_by_its_header_keeps_its_status(served: Served) -> None:
    speaker = Speaker(served)
    assert (await speaker.post(b" " * 1_100_000, _HEADERS)).status == 413
    assert (await speaker.post(_list(), {**_HEADERS, "content-type": "text/plain"})).status == 415
