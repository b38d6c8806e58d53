"""Who signs in, with what proof, for what, and whom they come back from."""

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
from deputize.execute.upstreams.signing_in.challenge import Challenge
from deputize.execute.upstreams.signing_in.clients import Client, document
from deputize.execute.upstreams.signing_in.flow import Begun, SigningIn, asks_in_vain, scopes_to_ask
from deputize.execute.upstreams.signing_in.places import Place
from deputize.execute.upstreams.signing_in.tokens import Endpoint
from tests.unit.execute.upstreams.signing_in.pages import ISSUER, METADATA, SERVER, Pages, gives, metadata

BACK = "https://gateway.example/console/servers/callback"
DOCUMENT = "https://gateway.example/.well-known/oauth-client"
TOKEN, REGISTER = f"{ISSUER}/token", f"{ISSUER}/register"
NOW = 1_800_000_000


def signing_in(pages: Pages, *, document: str | None = DOCUMENT, back_to: str = BACK) -> SigningIn:
    return SigningIn(pages, Clock(epoch_ms=lambda: NOW * 1000), back_to=back_to, document=document)


async def place_of(pages: Pages, **said: Any) -> Place:
    pages.documents[METADATA] = metadata(**said)
    return await signing_in(pages).find(SERVER, Challenge())


async def begun(pages: Pages, **said: Any) -> tuple[SigningIn, dict[str, str], Begun]:
    place = await place_of(pages, **said)
    flow = signing_in(pages)
    url, state = flow.begin(place, Client(issuer=ISSUER, id="us", method="none"), ("a",))
    return flow, dict(parse_qsl(urlsplit(url).query)), state


async def test_a_code_goes_to_the_issuer_with_the_verifier_and_the_resource() -> None:
    pages = Pages()
    pages.endpoints[TOKEN] = gives(expires_in=3600, refresh_token="refresh-1", scope="a b")
    flow, asked, state = await begun(pages)
    assert asked["resource"] == SERVER
    assert asked["scope"] == "a"
    tokens = await flow.finish(state, {"state": asked["state"], "code": "c", "iss": ISSUER})
    _, form, _ = pages.sent[-1]
    digest = hashlib.sha256(form["code_verifier"].encode()).digest()
    assert asked["code_challenge"] == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert (form["resource"], form["redirect_uri"], form["client_id"]) == (SERVER, BACK, "us")
    assert (tokens.access, tokens.refresh, tokens.expires_at) == ("access-token-1", "refresh-1", NOW + 3600)
    assert tokens.scopes == ("a", "b")
    assert "access-token-1" not in repr(tokens)
    assert "refresh-1" not in repr(tokens)


@pytest.mark.parametrize(
    ("names_itself", "answer"),
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
async def test_whoever_comes_back_otherwise_gets_nothing(names_itself: bool, answer: dict[str, str | None]) -> None:
    pages = Pages()
    pages.endpoints[TOKEN] = gives()
    flow, asked, state = await begun(pages, authorization_response_iss_parameter_supported=names_itself)
    told = {"state": asked["state"] if answer else "", "code": "c", "iss": ISSUER} | answer
    with pytest.raises(UpstreamSignInFailed):
        await flow.finish(state, {name: value for name, value in told.items() if value is not None})
    assert pages.sent == []


async def test_nobody_is_sent_where_codes_are_not_protected() -> None:
    for methods in (None, [], ["plain"]):
        pages = Pages()
        place = await place_of(pages, code_challenge_methods_supported=methods)
        with pytest.raises(UpstreamSignInFailed, match="PKCE"):
            signing_in(pages).begin(place, Client(issuer=ISSUER, id="us", method="none"), ())


async def test_the_client_is_the_operators_then_the_document_then_a_registration() -> None:
    pages = Pages()
    pages.endpoints[REGISTER] = lambda form, headers: (201, {"client_id": "made", "client_secret": "made-secret"})
    place = await place_of(pages, client_id_metadata_document_supported=True)
    flow = signing_in(pages)
    ours = await flow.client(place, client_id="ours", secret="ours-secret", kept=None)
    assert (ours.id, ours.method) == ("ours", "client_secret_basic")
    by_document = await flow.client(place, client_id=None, secret=None, kept=None)
    assert (by_document.id, by_document.method, by_document.secret) == (DOCUMENT, "none", None)
    assert pages.sent == []
    place = await place_of(pages)
    made = await flow.client(place, client_id=None, secret=None, kept=None)
    assert (made.id, made.secret) == ("made", "made-secret")
    _, said, _ = pages.sent[-1]
    assert said["redirect_uris"] == [BACK]
    assert said["application_type"] == "web"
    assert "refresh_token" in said["grant_types"]
    assert await flow.client(place, client_id=None, secret=None, kept=made) is made
    assert "made-secret" not in repr(made)


async def test_a_registration_of_another_issuer_or_past_its_end_is_none() -> None:
    pages = Pages()
    pages.endpoints[REGISTER] = lambda form, headers: (201, {"client_id": "new"})
    place = await place_of(pages)
    for kept in (
        Client(issuer="https://before.example", id="old", method="none"),
        Client(issuer=ISSUER, id="old", method="client_secret_post", secret="s", secret_ends=NOW + 30),
    ):
        assert (await signing_in(pages).client(place, client_id=None, secret=None, kept=kept)).id == "new"


async def test_where_nobody_registers_the_operator_is_told() -> None:
    pages = Pages()
    place = await place_of(pages, registration_endpoint=None)
    with pytest.raises(UpstreamSignInFailed, match="registered there before"):
        await signing_in(pages).client(place, client_id=None, secret=None, kept=None)


async def test_a_secret_is_shown_as_the_server_takes_it() -> None:
    pages = Pages()
    pages.endpoints[TOKEN] = gives()
    for method in ("client_secret_basic", "client_secret_post"):
        place = await place_of(pages, token_endpoint_auth_methods_supported=[method])
        client = await signing_in(pages).client(place, client_id="us:1", secret="a b%", kept=None)
        await signing_in(pages).as_client(place, client, ("x", "y"))
        _, form, headers = pages.sent[-1]
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
    pages = Pages()
    pages.endpoints[TOKEN] = gives()
    place = await place_of(pages)
    client = await signing_in(pages).client(place, client_id="us", secret=pem, kept=None)
    await signing_in(pages).as_client(place, client, ())
    _, form, _ = pages.sent[-1]
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
    pages = Pages()
    flow = signing_in(pages)
    at = Endpoint(url=TOKEN, resource=SERVER, client=Client(issuer=ISSUER, id="us", method="none"))
    pages.endpoints[TOKEN] = gives()
    assert (await flow.refresh(at, "first")).refresh == "first"
    pages.endpoints[TOKEN] = gives(refresh_token="second")
    assert (await flow.refresh(at, "first")).refresh == "second"


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
    pages = Pages()
    pages.endpoints[TOKEN] = lambda form, headers: (status, said)
    at = Endpoint(url=TOKEN, resource=SERVER, client=Client(issuer=ISSUER, id="us", method="none"))
    with pytest.raises(UpstreamSignInFailed) as told:
        await signing_in(pages).refresh(at, "first")
    assert told.value.final is final
    assert "<b>" not in told.value.message


async def test_a_server_that_is_away_refuses_nobody() -> None:
    pages = Pages()
    at = Endpoint(url=TOKEN, resource=SERVER, client=Client(issuer=ISSUER, id="us", method="none"))
    answers = [302, 500, 503]
    pages.endpoints[TOKEN] = lambda form, headers: (answers.pop(), {"error": "invalid_grant"})
    while answers:
        with pytest.raises(UpstreamUnavailable):
            await signing_in(pages).refresh(at, "first")


async def test_scopes_are_the_challenges_then_the_servers_then_none() -> None:
    pages = Pages()
    place = await place_of(pages, scopes_supported=["offline_access"])
    assert scopes_to_ask(place, Challenge(), (), offline=True) == ()
    assert scopes_to_ask(place, Challenge(scopes=("a",)), (), offline=True) == ("a", "offline_access")
    assert scopes_to_ask(place, Challenge(scopes=("b",)), ("a",), offline=False) == ("a", "b")
    pages.documents["https://mcp.example/.well-known/oauth-protected-resource/v1/mcp"]["scopes_supported"] = ["x"]
    place = await place_of(pages)
    assert scopes_to_ask(place, Challenge(), (), offline=True) == ("x",)
    assert scopes_to_ask(place, Challenge(scopes=("a",)), (), offline=True) == ("a",)


def test_whoever_wants_what_was_asked_for_already_is_not_asked_again() -> None:
    wants = Challenge(error="insufficient_scope", scopes=("a",))
    assert asks_in_vain(wants, ("a", "b"))
    assert not asks_in_vain(wants, ("b",))
    assert not asks_in_vain(Challenge(scopes=("a",)), ("a",))


def test_the_document_says_what_a_registration_would() -> None:
    said = document(DOCUMENT, BACK)
    assert said["client_id"] == DOCUMENT
    assert said["redirect_uris"] == [BACK]
    assert said["token_endpoint_auth_method"] == "none"
    assert said["client_uri"] == "https://gateway.example"
