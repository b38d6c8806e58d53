"""The door's manners: what a request must be, in either era, before anything is done about it."""

import base64
from typing import Any

import pytest

from deputize.core.mcp.constants import (
    CLIENT_CAPABILITIES,
    HANDSHAKE_VERSIONS,
    MODERN_VERSION,
    PROTOCOL_VERSION_KEY,
    SUPPORTED_VERSIONS,
)
from tests.integration.conftest import ADMIN, OTHER_ISSUER, PUBLIC_URL, HttpGateway
from tests.support.mcp_client import ACCEPT, URL_ELICITATION, McpClient

_META = {PROTOCOL_VERSION_KEY: MODERN_VERSION, CLIENT_CAPABILITIES: {}}
_HEADERS = {"accept": ACCEPT, "mcp-protocol-version": MODERN_VERSION, "mcp-method": "tools/list"}


def _make_list_request(**more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": _META}, **more}


async def test_a_server_tells_what_it_can_do(gateway: HttpGateway) -> None:
    result = (await McpClient(gateway).send_request("server/discover")).result
    assert result["supportedVersions"] == list(SUPPORTED_VERSIONS)
    assert set(result["capabilities"]) == {"tools", "extensions"}
    assert "calls_get" in result["instructions"]


@pytest.mark.parametrize("wanted", [*HANDSHAKE_VERSIONS, "2024-11-05", "3000-01-01"])
async def test_a_handshake_is_answered_in_a_version_that_is_served(gateway: HttpGateway, wanted: str) -> None:
    client = McpClient(gateway, version=HANDSHAKE_VERSIONS[0])
    told = {"protocolVersion": wanted, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    answer = await client.send_request("initialize", told, headers={"mcp-protocol-version": None})
    assert answer.result["protocolVersion"] == (wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0])
    assert "mcp-session-id" not in answer.headers
    assert (await client.send_request("ping")).result == {}


async def test_a_session_id_is_given_only_to_who_has_something_to_be_remembered_by(gateway: HttpGateway) -> None:
    told = {"protocolVersion": HANDSHAKE_VERSIONS[0], "capabilities": URL_ELICITATION}
    answer = await McpClient(gateway, version=HANDSHAKE_VERSIONS[0]).send_request("initialize", told)
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
    gateway: HttpGateway, change: dict[str, str | None], code: int
) -> None:
    answer = await McpClient(gateway).post(_make_list_request(), {**_HEADERS, **change})
    assert (answer.status, answer.error["code"], answer.last_message["id"]) == (400, code, 1)


async def test_the_name_in_the_header_may_be_encoded_and_must_be_the_same(gateway: HttpGateway) -> None:
    client = McpClient(gateway)
    name = "shop__list_users"
    encoded = f"=?base64?{base64.b64encode(name.encode()).decode()}?="
    for header in (encoded, name):
        assert (await client.call_tool(name, {"limit": 1}, headers={"mcp-name": header})).structured_content == {
            "result": [0]
        }
    others = (None, "shop__get_user", "Shop__List_Users", "=?base64?!!?=", "=?base64?c2hvcA=?=")
    for other in others:
        assert (await client.call_tool(name, {"limit": 1}, headers={"mcp-name": other})).error["code"] == -32020


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, -32700),
        (b"\xff\xfe", 400, -32700),
        ([_make_list_request()], 400, -32600),
        ("text", 400, -32600),
        (_make_list_request(jsonrpc="1.0"), 400, -32600),
        (_make_list_request(id=None), 400, -32600),
        (_make_list_request(id=1.5), 400, -32600),
        (_make_list_request(method=7), 400, -32600),
        (_make_list_request(params=[]), 400, -32600),
        (_make_list_request(params={}), 400, -32602),
        (_make_list_request(params={"_meta": {PROTOCOL_VERSION_KEY: MODERN_VERSION}}), 400, -32602),
        (_make_list_request(params={"_meta": {CLIENT_CAPABILITIES: {}}}), 400, -32602),
        (_make_list_request(params={"_meta": _META, "cursor": "?"}), 400, -32602),
        (_make_list_request(params={"_meta": _META, "cursor": 7}), 400, -32602),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, 400, -32600),
    ],
)
async def test_a_malformed_request_explains_what_is_wrong(
    gateway: HttpGateway, body: Any, status: int, code: int
) -> None:
    answer = await McpClient(gateway).post(body, _HEADERS)
    assert (answer.status, answer.error["code"]) == (status, code)


async def test_an_unsupported_protocol_version_lists_the_supported_ones(gateway: HttpGateway) -> None:
    meta = {**_META, PROTOCOL_VERSION_KEY: "2031-01-01"}
    answer = await McpClient(gateway).post(
        _make_list_request(params={"_meta": meta}), {**_HEADERS, "mcp-protocol-version": "2031-01-01"}
    )
    assert (answer.status, answer.error["code"]) == (400, -32022)
    assert answer.error["data"] == {"supported": list(SUPPORTED_VERSIONS), "requested": "2031-01-01"}


@pytest.mark.parametrize("version", [MODERN_VERSION, HANDSHAKE_VERSIONS[0]])
async def test_a_method_that_is_not_there_says_so(gateway: HttpGateway, version: str) -> None:
    for method in ("resources/subscribe", "logging/setLevel", "sampling/createMessage", "nothing"):
        answer = await McpClient(gateway, version=version).send_request(method, {})
        assert (answer.status, answer.error["code"]) == (404 if version == MODERN_VERSION else 200, -32601)


@pytest.mark.parametrize("version", [MODERN_VERSION, HANDSHAKE_VERSIONS[0]])
async def test_notifications_are_taken_note_of(gateway: HttpGateway, version: str) -> None:
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    answer = await McpClient(gateway).post(body, {"accept": ACCEPT, "mcp-protocol-version": version})
    assert (answer.status, answer.messages) == (202, [])


@pytest.mark.parametrize("verb", ["GET", "DELETE", "PUT"])
async def test_only_post_is_spoken(gateway: HttpGateway, verb: str) -> None:
    answer = await gateway.http.request(verb, "/mcp", headers={"authorization": f"Bearer {gateway.token()}"})
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream", "text/html", None])
async def test_a_client_takes_json_and_streams(gateway: HttpGateway, accept: str | None) -> None:
    headers = {**_HEADERS, "accept": accept or ""}
    assert (await McpClient(gateway).post(_make_list_request(), headers)).status == 406


async def test_pages_of_other_sites_are_not_answered(gateway: HttpGateway) -> None:
    client = McpClient(gateway)
    for origin, status in (
        ("https://evil.example", 403),
        ("null", 403),
        ("http://localhost:3000", 200),
        (PUBLIC_URL, 200),
    ):
        assert (await client.post(_make_list_request(), {**_HEADERS, "origin": origin})).status == status


@pytest.mark.requirement("GOV-1")
async def test_who_shows_no_good_token_learns_where_to_get_one(gateway: HttpGateway) -> None:
    where = f'resource_metadata="{PUBLIC_URL}/.well-known/oauth-protected-resource/mcp"'
    bare = await gateway.http.post("/mcp", json=_make_list_request(), headers={"accept": ACCEPT})
    assert (bare.status_code, bare.headers["www-authenticate"]) == (401, f'Bearer realm="deputize", {where}')
    bad = await McpClient(gateway, token="not.a.token").post(_make_list_request(), _HEADERS)
    assert (bad.status, bad.last_message["id"]) == (401, None)
    assert bad.headers["www-authenticate"] == f'Bearer realm="deputize", error="invalid_token", {where}'
    told = (await gateway.http.get("/.well-known/oauth-protected-resource/mcp")).json()
    assert told["resource"] == f"{PUBLIC_URL}/mcp"
    assert OTHER_ISSUER in told["authorization_servers"]


async def test_a_revoked_caller_gets_401_on_every_method(gateway: HttpGateway) -> None:
    gone = gateway.token("gone")
    await gateway.post("/v1/revocations", {"kind": "user", "value": "gone"}, token=gateway.token(scopes=[ADMIN]))
    for version in (MODERN_VERSION, HANDSHAKE_VERSIONS[0]):
        client = McpClient(gateway, token=gone, version=version)
        for answer in (await client.send_request("tools/list"), await client.call_tool("shop__get_user", {"id": 1})):
            assert answer.status == 401
            assert "resource_metadata" in answer.headers["www-authenticate"]
            assert answer.error["data"]["error"]["slug"] == "revoked"


async def test_what_is_too_large_or_no_json_by_its_header_keeps_its_status(gateway: HttpGateway) -> None:
    client = McpClient(gateway)
    assert (await client.post(b" " * 1_100_000, _HEADERS)).status == 413
    assert (await client.post(_make_list_request(), {**_HEADERS, "content-type": "text/plain"})).status == 415
