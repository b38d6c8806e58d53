"""Where one signs in is what the server and its authorization server say of themselves, and of nobody else."""

import pytest

from deputize.core.errors import UpstreamSignInFailed
from deputize.execute.upstreams.signing_in.challenge import Challenge
from deputize.execute.upstreams.signing_in.places import covers, find
from deputize.execute.upstreams.signing_in.web import is_safe
from tests.unit.execute.upstreams.signing_in.pages import ISSUER, METADATA, RESOURCE, SERVER, Pages, metadata

NOTHING = Challenge()


async def test_the_servers_own_document_is_looked_for_below_its_path_and_then_at_the_root() -> None:
    pages = Pages()
    place = await find(pages, SERVER, NOTHING, issuer=None)
    assert (place.resource, place.issuer, place.token) == (SERVER, ISSUER, f"{ISSUER}/token")
    assert pages.read == [RESOURCE, METADATA]
    pages.documents["https://mcp.example/.well-known/oauth-protected-resource"] = {
        "resource": "https://mcp.example", "authorization_servers": [ISSUER],
    }  # fmt: skip
    del pages.documents[RESOURCE]
    assert (await find(pages, SERVER, NOTHING, issuer=None)).resource == "https://mcp.example"


async def test_a_refusal_that_names_the_document_is_believed_first() -> None:
    pages, elsewhere = Pages(), "https://mcp.example/custom.json"
    pages.documents[elsewhere] = {"resource": SERVER, "authorization_servers": [ISSUER], "scopes_supported": ["a", "b"]}
    place = await find(pages, SERVER, Challenge(resource_metadata=elsewhere), issuer=None)
    assert pages.read[0] == elsewhere
    assert place.scopes == ("a", "b")


async def test_an_address_that_is_not_safe_is_never_asked() -> None:
    pages = Pages()
    await find(pages, SERVER, Challenge(resource_metadata="http://mcp.example/custom.json"), issuer=None)
    assert pages.read[0] == RESOURCE
    pages.documents[RESOURCE]["authorization_servers"] = ["http://login.example"]
    with pytest.raises(UpstreamSignInFailed, match="no https address"):
        await find(pages, SERVER, NOTHING, issuer=None)
    pages.documents[RESOURCE]["authorization_servers"] = [ISSUER]
    pages.documents[METADATA] = metadata(token_endpoint="http://login.example/token")
    with pytest.raises(UpstreamSignInFailed, match="token endpoint"):
        await find(pages, SERVER, NOTHING, issuer=None)


async def test_a_document_about_somebody_else_is_not_used() -> None:
    pages = Pages()
    pages.documents[METADATA] = metadata(issuer=f"{ISSUER}/")
    with pytest.raises(UpstreamSignInFailed, match="about another one"):
        await find(pages, SERVER, NOTHING, issuer=None)
    pages.documents[RESOURCE]["resource"] = "https://other.example/v1/mcp"
    with pytest.raises(UpstreamSignInFailed, match="another address"):
        await find(pages, SERVER, NOTHING, issuer=None)


async def test_a_server_cannot_send_people_elsewhere_than_the_operator_said() -> None:
    pages = Pages()
    with pytest.raises(UpstreamSignInFailed, match="the settings name"):
        await find(pages, SERVER, NOTHING, issuer="https://ours.example")
    assert pages.read == [RESOURCE]
    del pages.documents[RESOURCE]
    assert (await find(pages, SERVER, NOTHING, issuer=ISSUER)).resource == SERVER
    with pytest.raises(UpstreamSignInFailed, match="where to sign in"):
        await find(pages, SERVER, NOTHING, issuer=None)


async def test_metadata_of_an_issuer_with_a_path_is_looked_for_in_the_order_of_the_protocol() -> None:
    pages, issuer = Pages(), "https://login.example/tenant1"
    pages.documents[RESOURCE]["authorization_servers"] = [issuer]
    pages.documents[f"{issuer}/.well-known/openid-configuration"] = metadata(issuer=issuer)
    await find(pages, SERVER, NOTHING, issuer=None)
    assert pages.read[1:] == [
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
    assert covers(resource, SERVER) is matches


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
    assert is_safe(url) is safe
