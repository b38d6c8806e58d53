"""Test metadata discovery: each document must identify the server it was requested for."""

import pytest

from deputize.core.errors import UpstreamSignInFailed
from deputize.execute.upstreams.oauth.metadata import (
    discover_auth_server,
    discover_revocation_endpoint,
    is_resource_for,
)
from deputize.execute.upstreams.oauth.oauth_requests import is_safe_url
from deputize.execute.upstreams.oauth.www_authenticate import Challenge
from tests.unit.execute.upstreams.oauth.fake_oauth_server import (
    ISSUER,
    METADATA,
    RESOURCE,
    SERVER,
    FakeOAuthServer,
    make_metadata,
)

NOTHING = Challenge()


async def test_resource_metadata_is_fetched_below_the_path_and_then_at_the_root() -> None:
    oauth_server = FakeOAuthServer()
    place = await discover_auth_server(oauth_server, SERVER, NOTHING, issuer=None)
    assert (place.resource, place.issuer, place.token_endpoint) == (SERVER, ISSUER, f"{ISSUER}/token")
    assert oauth_server.read == [RESOURCE, METADATA]
    oauth_server.documents["https://mcp.example/.well-known/oauth-protected-resource"] = {
        "resource": "https://mcp.example", "authorization_servers": [ISSUER],
    }  # fmt: skip
    del oauth_server.documents[RESOURCE]
    assert (await discover_auth_server(oauth_server, SERVER, NOTHING, issuer=None)).resource == "https://mcp.example"


async def test_a_refusal_that_names_the_document_is_believed_first() -> None:
    oauth_server, elsewhere = FakeOAuthServer(), "https://mcp.example/custom.json"
    oauth_server.documents[elsewhere] = {
        "resource": SERVER,
        "authorization_servers": [ISSUER],
        "scopes_supported": ["a", "b"],
    }
    place = await discover_auth_server(oauth_server, SERVER, Challenge(resource_metadata=elsewhere), issuer=None)
    assert oauth_server.read[0] == elsewhere
    assert place.scopes == ("a", "b")


async def test_an_address_that_is_not_safe_is_never_asked() -> None:
    oauth_server = FakeOAuthServer()
    await discover_auth_server(
        oauth_server, SERVER, Challenge(resource_metadata="http://mcp.example/custom.json"), issuer=None
    )
    assert oauth_server.read[0] == RESOURCE
    oauth_server.documents[RESOURCE]["authorization_servers"] = ["http://login.example"]
    with pytest.raises(UpstreamSignInFailed, match="not an https URL"):
        await discover_auth_server(oauth_server, SERVER, NOTHING, issuer=None)
    oauth_server.documents[RESOURCE]["authorization_servers"] = [ISSUER]
    oauth_server.documents[METADATA] = make_metadata(token_endpoint="http://login.example/token")
    with pytest.raises(UpstreamSignInFailed, match="token endpoint"):
        await discover_auth_server(oauth_server, SERVER, NOTHING, issuer=None)


async def test_tokens_are_revoked_only_where_their_issuer_says_and_only_over_https() -> None:
    oauth_server = FakeOAuthServer()
    assert await discover_revocation_endpoint(oauth_server, ISSUER) is None
    oauth_server.documents[METADATA] = make_metadata(revocation_endpoint=f"{ISSUER}/revoke")
    assert await discover_revocation_endpoint(oauth_server, ISSUER) == f"{ISSUER}/revoke"
    oauth_server.documents[METADATA] = make_metadata(revocation_endpoint="http://login.example/revoke")
    with pytest.raises(UpstreamSignInFailed, match="revocation endpoint"):
        await discover_revocation_endpoint(oauth_server, ISSUER)
    oauth_server.documents[METADATA] = make_metadata(issuer="https://evil.example")
    with pytest.raises(UpstreamSignInFailed, match="another issuer"):
        await discover_revocation_endpoint(oauth_server, ISSUER)


async def test_a_document_about_somebody_else_is_not_used() -> None:
    oauth_server = FakeOAuthServer()
    oauth_server.documents[METADATA] = make_metadata(issuer=f"{ISSUER}/")
    with pytest.raises(UpstreamSignInFailed, match="for another issuer"):
        await discover_auth_server(oauth_server, SERVER, NOTHING, issuer=None)
    oauth_server.documents[RESOURCE]["resource"] = "https://other.example/v1/mcp"
    with pytest.raises(UpstreamSignInFailed, match="for another URL"):
        await discover_auth_server(oauth_server, SERVER, NOTHING, issuer=None)


async def test_a_server_cannot_send_people_elsewhere_than_the_operator_said() -> None:
    oauth_server = FakeOAuthServer()
    with pytest.raises(UpstreamSignInFailed, match="another authorization server"):
        await discover_auth_server(oauth_server, SERVER, NOTHING, issuer="https://ours.example")
    assert oauth_server.read == [RESOURCE]
    del oauth_server.documents[RESOURCE]
    assert (await discover_auth_server(oauth_server, SERVER, NOTHING, issuer=ISSUER)).resource == SERVER
    with pytest.raises(UpstreamSignInFailed, match="does not name its authorization server"):
        await discover_auth_server(oauth_server, SERVER, NOTHING, issuer=None)


async def test_metadata_of_an_issuer_with_a_path_is_fetched_in_protocol_order() -> None:
    oauth_server, issuer = FakeOAuthServer(), "https://login.example/tenant1"
    oauth_server.documents[RESOURCE]["authorization_servers"] = [issuer]
    oauth_server.documents[f"{issuer}/.well-known/openid-configuration"] = make_metadata(issuer=issuer)
    await discover_auth_server(oauth_server, SERVER, NOTHING, issuer=None)
    assert oauth_server.read[1:] == [
        "https://login.example/.well-known/oauth-authorization-server/tenant1",
        "https://login.example/.well-known/openid-configuration/tenant1",
        "https://login.example/tenant1/.well-known/openid-configuration",
    ]


@pytest.mark.parametrize(
    ("resource", "matches"),
    [
        (SERVER, True),
        ("https://MCP.example:443/v1/mcp/", True),
        ("https://mcp.example", True),
        ("https://mcp.example/v1", True),
        ("https://mcp.example/v1/m", False),
        ("https://mcp.example/v1/mcp/more", False),
        ("http://mcp.example/v1/mcp", False),
        ("https://mcp.example:8443/v1/mcp", False),
        ("https://evil.example/v1/mcp", False),
        ("https://mcp.example@evil.example/v1/mcp", False),
        ("https://mcp.example/v1/mcp#a", False),
        ("https://mcp.example/v1/mcp?a=b", False),
        (None, False),
    ],
)
def test_a_resource_is_the_server_or_what_it_lies_below(resource: str | None, matches: bool) -> None:
    assert is_resource_for(resource, SERVER) is matches


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://a.example/b", True),
        ("http://localhost:1/b", True),
        ("http://127.0.0.1/b", True),
        ("http://[::1]/b", True),
        ("http://a.example/b", False),
        ("http://localhost.a.example/", False),
        ("https://user:word@a.example/", False),
        ("https://a.example/#b", False),
        ("file:///etc/passwd", False),
        ("https://a.example/\r\nb", False),
        ("https://[", False),
        ("", False),
    ],
)
def test_only_https_or_this_machine_is_asked(url: str, safe: bool) -> None:
    assert is_safe_url(url) is safe
