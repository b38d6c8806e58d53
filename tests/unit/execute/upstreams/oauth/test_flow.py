"""Test the OAuth flow: client, PKCE, scopes and the checks of the authorization response."""

import base64
import hashlib
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deputize.core.clock import Clock
from deputize.core.errors import UpstreamSignInFailed, UpstreamUnavailable
from deputize.execute.upstreams.oauth.client_registration import OAuthClient, build_client_metadata
from deputize.execute.upstreams.oauth.flow import OAuthFlow, PendingAuthorization, is_scope_loop, select_scopes
from deputize.execute.upstreams.oauth.metadata import AuthorizationServer
from deputize.execute.upstreams.oauth.tokens import TokenEndpoint
from deputize.execute.upstreams.oauth.www_authenticate import Challenge
from tests.unit.execute.upstreams.oauth.fake_oauth_server import (
    ISSUER,
    METADATA,
    SERVER,
    FakeOAuthServer,
    make_metadata,
    token_endpoint,
)

REDIRECT_URI = "https://gateway.example/console/servers/callback"
CLIENT_METADATA_URL = "https://gateway.example/.well-known/oauth-client"
TOKEN, REGISTER = f"{ISSUER}/token", f"{ISSUER}/register"
NOW = 1_800_000_000


def make_flow(
    oauth_server: FakeOAuthServer, *, document: str | None = CLIENT_METADATA_URL, back_to: str = REDIRECT_URI
) -> OAuthFlow:
    return OAuthFlow(
        oauth_server, Clock(epoch_ms=lambda: NOW * 1000), redirect_uri=back_to, client_metadata_url=document
    )


async def discover_metadata(oauth_server: FakeOAuthServer, **fields: Any) -> AuthorizationServer:
    oauth_server.documents[METADATA] = make_metadata(**fields)
    return await make_flow(oauth_server).discover_auth_server(SERVER, Challenge())


async def begin_flow(
    oauth_server: FakeOAuthServer, **fields: Any
) -> tuple[OAuthFlow, dict[str, str], PendingAuthorization]:
    place = await discover_metadata(oauth_server, **fields)
    flow = make_flow(oauth_server)
    url, state = flow.start_authorization(place, OAuthClient(issuer=ISSUER, id="us", method="none"), ("a",))
    return flow, dict(parse_qsl(urlsplit(url).query)), state


async def test_a_code_goes_to_the_issuer_with_the_verifier_and_the_resource() -> None:
    oauth_server = FakeOAuthServer()
    oauth_server.endpoints[TOKEN] = token_endpoint(expires_in=3600, refresh_token="refresh-1", scope="a b")
    flow, asked, state = await begin_flow(oauth_server)
    assert asked["resource"] == SERVER
    assert asked["scope"] == "a"
    tokens = await flow.complete_authorization(state, {"state": asked["state"], "code": "c", "iss": ISSUER})
    _, form, _ = oauth_server.requests[-1]
    digest = hashlib.sha256(form["code_verifier"].encode()).digest()
    assert asked["code_challenge"] == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert (form["resource"], form["redirect_uri"], form["client_id"]) == (SERVER, REDIRECT_URI, "us")
    assert (tokens.access, tokens.refresh, tokens.expires_at) == ("access-token-1", "refresh-1", NOW + 3600)
    assert tokens.scopes == ("a", "b")
    assert "access-token-1" not in repr(tokens)
    assert "refresh-1" not in repr(tokens)


@pytest.mark.parametrize(
    ("requires_iss", "answer"),
    [
        (False, {"state": "other"}),
        (False, {}),
        (False, {"iss": "https://evil.example"}),
        (True, {"iss": f"{ISSUER}/"}),
        (True, {"iss": None}),
        (False, {"code": None, "error": "access_denied"}),
        (False, {"code": "c" * 5000}),
    ],
)
async def test_a_response_that_does_not_match_gets_no_token(requires_iss: bool, answer: dict[str, str | None]) -> None:
    oauth_server = FakeOAuthServer()
    oauth_server.endpoints[TOKEN] = token_endpoint()
    flow, asked, state = await begin_flow(oauth_server, authorization_response_iss_parameter_supported=requires_iss)
    told = {"state": asked["state"] if answer else "", "code": "c", "iss": ISSUER} | answer
    with pytest.raises(UpstreamSignInFailed):
        await flow.complete_authorization(state, {name: value for name, value in told.items() if value is not None})
    assert oauth_server.requests == []


async def test_nobody_is_sent_where_codes_are_not_protected() -> None:
    for methods in (None, [], ["plain"]):
        oauth_server = FakeOAuthServer()
        place = await discover_metadata(oauth_server, code_challenge_methods_supported=methods)
        with pytest.raises(UpstreamSignInFailed, match="PKCE"):
            make_flow(oauth_server).start_authorization(place, OAuthClient(issuer=ISSUER, id="us", method="none"), ())


async def test_the_client_is_the_operators_then_the_document_then_a_registration() -> None:
    oauth_server = FakeOAuthServer()
    oauth_server.endpoints[REGISTER] = lambda form, headers: (
        201,
        {"client_id": "made", "client_secret": "made-secret"},
    )
    place = await discover_metadata(oauth_server, client_id_metadata_document_supported=True)
    flow = make_flow(oauth_server)
    ours = await flow.resolve_client(place, client_id="ours", secret="ours-secret", registration=None)
    assert (ours.id, ours.method) == ("ours", "client_secret_basic")
    by_document = await flow.resolve_client(place, client_id=None, secret=None, registration=None)
    assert (by_document.id, by_document.method, by_document.secret) == (CLIENT_METADATA_URL, "none", None)
    assert oauth_server.requests == []
    place = await discover_metadata(oauth_server)
    made = await flow.resolve_client(place, client_id=None, secret=None, registration=None)
    assert (made.id, made.secret) == ("made", "made-secret")
    _, said, _ = oauth_server.requests[-1]
    assert said["redirect_uris"] == [REDIRECT_URI]
    assert said["application_type"] == "web"
    assert "refresh_token" in said["grant_types"]
    assert await flow.resolve_client(place, client_id=None, secret=None, registration=made) is made
    assert "made-secret" not in repr(made)


async def test_a_registration_of_another_issuer_or_past_its_end_is_none() -> None:
    oauth_server = FakeOAuthServer()
    oauth_server.endpoints[REGISTER] = lambda form, headers: (201, {"client_id": "new"})
    place = await discover_metadata(oauth_server)
    for kept in (
        OAuthClient(issuer="https://before.example", id="old", method="none"),
        OAuthClient(issuer=ISSUER, id="old", method="client_secret_post", secret="s", secret_expires_at=NOW + 30),
    ):
        assert (
            await make_flow(oauth_server).resolve_client(place, client_id=None, secret=None, registration=kept)
        ).id == "new"


async def test_missing_client_registration_is_reported_to_the_operator() -> None:
    oauth_server = FakeOAuthServer()
    place = await discover_metadata(oauth_server, registration_endpoint=None)
    with pytest.raises(UpstreamSignInFailed, match="dynamic client registration"):
        await make_flow(oauth_server).resolve_client(place, client_id=None, secret=None, registration=None)


async def test_a_secret_is_shown_as_the_server_takes_it() -> None:
    oauth_server = FakeOAuthServer()
    oauth_server.endpoints[TOKEN] = token_endpoint()
    for method in ("client_secret_basic", "client_secret_post"):
        place = await discover_metadata(oauth_server, token_endpoint_auth_methods_supported=[method])
        client = await make_flow(oauth_server).resolve_client(place, client_id="us:1", secret="a b%", registration=None)
        await make_flow(oauth_server).request_client_token(place, client, ("x", "y"))
        _, form, headers = oauth_server.requests[-1]
        assert (form["grant_type"], form["scope"], form["resource"]) == ("client_credentials", "x y", SERVER)
        if method == "client_secret_basic":
            assert base64.b64decode(headers["authorization"][6:]) == b"us%3A1:a+b%25"
            assert "client_secret" not in form
        else:
            assert (form["client_id"], form["client_secret"]) == ("us:1", "a b%")
            assert "authorization" not in headers


async def test_a_key_signs_for_the_issuer_and_is_never_sent() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    oauth_server = FakeOAuthServer()
    oauth_server.endpoints[TOKEN] = token_endpoint()
    place = await discover_metadata(oauth_server)
    client = await make_flow(oauth_server).resolve_client(place, client_id="us", secret=pem, registration=None)
    await make_flow(oauth_server).request_client_token(place, client, ())
    _, form, _ = oauth_server.requests[-1]
    claims = jwt.decode(
        form["client_assertion"],
        key.public_key(),
        ["ES256"],
        audience=ISSUER,
        options={"verify_exp": False, "verify_iat": False},
    )
    assert (claims["iss"], claims["sub"], claims["exp"]) == ("us", "us", NOW + 60)
    assert "PRIVATE" not in str(form)


async def test_a_refresh_token_is_kept_until_a_new_one_comes() -> None:
    oauth_server = FakeOAuthServer()
    flow = make_flow(oauth_server)
    at = TokenEndpoint(url=TOKEN, resource=SERVER, client=OAuthClient(issuer=ISSUER, id="us", method="none"))
    oauth_server.endpoints[TOKEN] = token_endpoint()
    assert (await flow.refresh_tokens(at, "first")).refresh == "first"
    oauth_server.endpoints[TOKEN] = token_endpoint(refresh_token="second")
    assert (await flow.refresh_tokens(at, "first")).refresh == "second"


@pytest.mark.parametrize(
    ("status", "said", "final"),
    [
        (400, {"error": "invalid_grant"}, True),
        (401, {"error": "invalid_client"}, True),
        (400, {"error": "temporarily_odd"}, False),
        (400, {"error": "text <b>of</b> anybody"}, False),
        (200, {"access_token": "a token", "token_type": "Bearer"}, False),
        (200, {"access_token": "access-token-1", "token_type": "DPoP"}, False),
        (200, {"access_token": "access-token-1"}, False),
        (200, [], False),
    ],
)
async def test_what_is_no_token_is_none(status: int, said: Any, final: bool) -> None:
    oauth_server = FakeOAuthServer()
    oauth_server.endpoints[TOKEN] = lambda form, headers: (status, said)
    at = TokenEndpoint(url=TOKEN, resource=SERVER, client=OAuthClient(issuer=ISSUER, id="us", method="none"))
    with pytest.raises(UpstreamSignInFailed) as told:
        await make_flow(oauth_server).refresh_tokens(at, "first")
    assert told.value.is_final is final
    assert "<b>" not in told.value.message


async def test_a_server_that_is_away_refuses_nobody() -> None:
    oauth_server = FakeOAuthServer()
    at = TokenEndpoint(url=TOKEN, resource=SERVER, client=OAuthClient(issuer=ISSUER, id="us", method="none"))
    answers = [302, 500, 503]
    oauth_server.endpoints[TOKEN] = lambda form, headers: (answers.pop(), {"error": "invalid_grant"})
    while answers:
        with pytest.raises(UpstreamUnavailable):
            await make_flow(oauth_server).refresh_tokens(at, "first")


async def test_scopes_are_the_challenges_then_the_servers_then_none() -> None:
    oauth_server = FakeOAuthServer()
    place = await discover_metadata(oauth_server, scopes_supported=["offline_access"])
    assert select_scopes(place, Challenge(), (), offline=True) == ()
    assert select_scopes(place, Challenge(scopes=("a",)), (), offline=True) == ("a", "offline_access")
    assert select_scopes(place, Challenge(scopes=("b",)), ("a",), offline=False) == ("a", "b")
    oauth_server.documents["https://mcp.example/.well-known/oauth-protected-resource/v1/mcp"]["scopes_supported"] = [
        "x"
    ]
    place = await discover_metadata(oauth_server)
    assert select_scopes(place, Challenge(), (), offline=True) == ("x",)
    assert select_scopes(place, Challenge(scopes=("a",)), (), offline=True) == ("a",)


def test_scopes_requested_already_are_not_requested_again() -> None:
    wants = Challenge(error="insufficient_scope", scopes=("a",))
    assert is_scope_loop(wants, ("a", "b"))
    assert not is_scope_loop(wants, ("b",))
    assert not is_scope_loop(Challenge(scopes=("a",)), ("a",))


def test_the_document_says_what_a_registration_would() -> None:
    said = build_client_metadata(CLIENT_METADATA_URL, REDIRECT_URI)
    assert said["client_id"] == CLIENT_METADATA_URL
    assert said["redirect_uris"] == [REDIRECT_URI]
    assert said["token_endpoint_auth_method"] == "none"
    assert said["client_uri"] == "https://gateway.example"
