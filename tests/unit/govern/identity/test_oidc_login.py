"""OIDC login: the redirect, the checks of its response, and the caller built from the ID token."""

import asyncio
import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import ValidationError

from deputize.core.config_error import ConfigError
from deputize.core.errors import (
    Problem,
    RateLimited,
    SignInFailed,
    TokenAudienceMismatch,
    TokenMalformed,
    TokenSignatureInvalid,
    Unavailable,
)
from deputize.core.settings import ConsoleGroup, ConsoleSettings, IdentitySettings
from deputize.govern.identity.oidc_login import LOGIN_SECONDS, OidcLogin, check_console_settings
from tests.support.fake_issuer import ISSUER, NOW, FakeIssuer, sign_token

pytestmark = pytest.mark.requirement("GOV-3")

CLIENT = "console"
REDIRECT_URI = "https://gateway.example/console/callback"
DOCUMENT = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/auth",
    "token_endpoint": f"{ISSUER}/token",
    "jwks_uri": f"{ISSUER}/jwks",
}


class FakeOidcProvider:
    """An issuer where people sign in, with the requests it received."""

    def __init__(self, *, secret_file: Any = None, groups: tuple[ConsoleGroup, ...] = (), **document: Any) -> None:
        self.world = FakeIssuer()
        self.document: dict[str, Any] = {**DOCUMENT, **document}
        self.claims: dict[str, Any] = {}
        self.answer: bytes | None = None
        self.requests: list[tuple[str, dict[str, list[str]], Mapping[str, str]]] = []
        self.login_attempt = sign_token
        console = ConsoleSettings(
            issuer=ISSUER, client_id=CLIENT, client_secret_file=secret_file, scopes=("groups",), groups=groups
        )
        self.sign_in = OidcLogin(
            console, self.world.verifier(human=True), self.world.time.clock, self.fetch, self.post,
            fresh_seconds=900, redirect_uri=REDIRECT_URI,
        )  # fmt: skip

    async def fetch(self, url: str) -> bytes:
        if url.endswith("openid-configuration"):
            return json.dumps(self.document).encode()
        raise OSError("nothing there")

    async def post(self, url: str, body: bytes, *, headers: Mapping[str, str]) -> bytes:
        self.requests.append((url, parse_qs(body.decode()), headers))
        if self.answer is not None:
            return self.answer
        return json.dumps({"id_token": self.login_attempt(**self.claims).decode()}).encode()

    async def complete_login(
        self, *, again: bool = False, answer: Mapping[str, str] | None = None, **claims: Any
    ) -> Any:
        """Complete one sign-in; the claims replace those of a valid ID token."""
        _, begun = await self.sign_in.start_login(reauthenticate=again)
        self.claims = {"aud": CLIENT, "nonce": begun.nonce, "auth_time": NOW - 60, "at_hash": "x", **claims}
        return await self.sign_in.finish_login(begun, {"code": "c", "state": begun.state, **(answer or {})})


async def test_the_login_url_has_state_nonce_and_pkce() -> None:
    url, begun = await FakeOidcProvider().sign_in.start_login()
    asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    challenge = base64.urlsafe_b64encode(hashlib.sha256(begun.verifier.encode()).digest()).rstrip(b"=").decode()
    assert url.startswith(f"{ISSUER}/auth?")
    assert asked == {
        "response_type": "code", "client_id": CLIENT, "redirect_uri": REDIRECT_URI, "scope": "openid groups",
        "state": begun.state, "nonce": begun.nonce, "code_challenge": challenge, "code_challenge_method": "S256",
        "max_age": "900",
    }  # fmt: skip
    assert len({begun.state, begun.nonce, begun.verifier}) == 3
    assert min(map(len, (begun.state, begun.nonce, begun.verifier))) >= 43


async def test_a_login_can_require_reauthentication_and_acr() -> None:
    url, _ = await FakeOidcProvider().sign_in.start_login(reauthenticate=True, acr="hwk")
    asked = parse_qs(urlsplit(url).query)
    assert (asked["max_age"], asked["prompt"], asked["acr_values"]) == (["0"], ["login"], ["hwk"])


async def test_a_finished_login_makes_a_console_caller() -> None:
    site = FakeOidcProvider()
    caller = await site.complete_login(groups=["oncall"], amr=["hwk", "pwd"], acr="gold", sid="s")
    assert (caller.tenant, caller.user, caller.issuer, caller.groups) == ("acme", "ana", ISSUER, {"oncall"})
    assert (caller.human, caller.console, caller.only_decides, caller.agents) == (True, True, True, ())
    assert caller.methods == {"hwk", "pwd", "gold"}
    assert (caller.auth_time, caller.expires_at, caller.token_id) == (NOW - 60, NOW + 900, "t-1")
    url, form, _ = site.requests[0]
    assert url == f"{ISSUER}/token"
    assert (form["grant_type"], form["code"], form["redirect_uri"]) == (["authorization_code"], ["c"], [REDIRECT_URI])
    assert form["client_id"] == [CLIENT]
    assert len(form["code_verifier"][0]) >= 43


GROUPS = (
    ConsoleGroup(group="audit", role="auditor"),
    ConsoleGroup(group="oncall", role="operator", scopes=("orders:write",)),
    ConsoleGroup(group="platform", role="administrator"),
    ConsoleGroup(group="support", scopes=("orders:write",)),
    ConsoleGroup(group="theirs", role="administrator", tenants="beta-*"),
)


@pytest.mark.parametrize(
    ("groups", "scopes"),
    [
        (["audit"], ["deputize:audit"]),
        (["oncall"], ["deputize:operate", "deputize:undo", "orders:write"]),
        (["platform"], ["deputize:admin", "deputize:undo"]),
        (["support"], ["orders:write"]),
        (["audit", "support"], ["deputize:audit", "orders:write"]),
        (["theirs"], []),
        (["Platform", "platform ", "unknown"], []),
        ([], []),
        (None, []),
    ],
    ids=str,
)
async def test_a_role_comes_from_groups_alone(groups: list[str] | None, scopes: list[str]) -> None:
    claimed = "deputize:admin deputize:operate deputize:audit orders:read"
    caller = await FakeOidcProvider(groups=GROUPS).complete_login(groups=groups, scope=claimed)
    assert caller.scopes == {"orders:read", *scopes}
    # Without settings for groups, the claim gives what it says.
    assert (await FakeOidcProvider().complete_login(groups=groups, scope=claimed)).scopes == set(claimed.split())


def test_a_group_needs_a_role_or_scopes_and_gets_no_role_by_scopes() -> None:
    for wrong in ({}, {"scopes": ("deputize:admin",)}, {"scopes": ("a b",)}, {"role": "root"}):
        with pytest.raises(ValidationError):
            ConsoleGroup.model_validate({"group": "x", **wrong})


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"nonce": "another"}, TokenMalformed),
        ({"nonce": None}, TokenMalformed),
        ({"aud": "https://gateway.example/else"}, TokenAudienceMismatch),
        ({"aud": [CLIENT, "somebody else"]}, TokenAudienceMismatch),
        ({"azp": "another client"}, TokenMalformed),
        ({"iss": "https://other.example"}, TokenMalformed),
        ({"exp": NOW - 60}, Problem),
        ({"auth_time": None}, SignInFailed),
        ({"auth_time": NOW - 906}, SignInFailed),
        ({"auth_time": NOW + 600}, TokenMalformed),
        ({"events": {}}, TokenMalformed),
        ({"act": {"sub": "bot"}}, TokenAudienceMismatch),
        ({"may_act": {"sub": "bot"}}, TokenAudienceMismatch),
        ({"sub": CLIENT, "azp": CLIENT}, TokenAudienceMismatch),
        ({"sub": None}, TokenMalformed),
        ({"sub": "a\nb"}, TokenMalformed),
    ],
    ids=str,
)
async def test_an_id_token_of_another_sign_in_is_rejected(claims: dict[str, Any], problem: type[Problem]) -> None:
    with pytest.raises(problem):
        await FakeOidcProvider().complete_login(**claims)


async def test_an_access_token_is_not_an_id_token() -> None:
    site = FakeOidcProvider()
    site.login_attempt = lambda **claims: sign_token(headers={"typ": "at+jwt"}, **claims)
    with pytest.raises(TokenMalformed):
        await site.complete_login()


async def test_an_id_token_with_a_foreign_signature_is_rejected() -> None:
    site = FakeOidcProvider()
    site.login_attempt = lambda **claims: sign_token(number=1, **claims)
    with pytest.raises(TokenSignatureInvalid):
        await site.complete_login()


async def test_required_reauthentication_is_checked() -> None:
    with pytest.raises(SignInFailed):
        await FakeOidcProvider().complete_login(again=True, auth_time=NOW - 10)
    caller = await FakeOidcProvider().complete_login(again=True, auth_time=NOW)
    assert caller.auth_time == NOW


@pytest.mark.parametrize(
    "answer",
    [{"state": "another"}, {"state": ""}, {"code": ""}, {"code": "c" * 4097}, {"iss": "https://mixed.example"}],
    ids=str,
)
async def test_an_unsolicited_response_is_rejected_without_a_request(answer: dict[str, str]) -> None:
    site = FakeOidcProvider()
    with pytest.raises(SignInFailed):
        await site.complete_login(answer=answer)
    assert site.requests == []


async def test_a_promised_iss_parameter_is_required() -> None:
    named = FakeOidcProvider(authorization_response_iss_parameter_supported=True)
    with pytest.raises(SignInFailed):
        await named.complete_login()
    assert (await named.complete_login(answer={"iss": ISSUER})).user == "ana"


async def test_only_the_error_code_of_the_issuer_is_shown() -> None:
    with pytest.raises(SignInFailed, match="access_denied"):
        await FakeOidcProvider().complete_login(answer={"code": "", "error": "access_denied"})
    with pytest.raises(SignInFailed, match="no code returned"):
        await FakeOidcProvider().complete_login(answer={"code": "", "error": "<b>call 555 1234</b>"})


async def test_an_old_login_has_expired() -> None:
    site = FakeOidcProvider()
    _, begun = await site.sign_in.start_login()
    site.world.time.seconds = LOGIN_SECONDS + 1
    with pytest.raises(SignInFailed):
        await site.sign_in.finish_login(begun, {"code": "c", "state": begun.state})


async def test_a_code_is_exchanged_with_its_own_verifier() -> None:
    site = FakeOidcProvider()
    _, begun = await site.sign_in.start_login()
    site.claims = {"aud": CLIENT, "nonce": begun.nonce, "auth_time": NOW}
    stolen = replace(begun, verifier="of another browser")
    await site.sign_in.finish_login(stolen, {"code": "c", "state": begun.state})
    # The issuer checks the verifier; the gateway must send its own, and none from the request.
    assert site.requests[0][1]["code_verifier"] == ["of another browser"]


async def _let_tasks_run() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def test_a_login_is_answered_once() -> None:
    site = FakeOidcProvider()
    _, begun = await site.sign_in.start_login()
    site.answer = b"{}"
    for _ in range(3):
        with pytest.raises(SignInFailed):
            await site.sign_in.finish_login(begun, {"code": "junk", "state": begun.state}, address="192.0.2.1")
    assert len(site.requests) == 1


async def test_junk_from_one_address_keeps_nobody_at_another_from_signing_in() -> None:
    site, release = FakeOidcProvider(), asyncio.Event()
    post = site.post

    async def hold_junk(url: str, body: bytes, *, headers: Mapping[str, str]) -> bytes:
        answer = await post(url, body, headers=headers)
        if b"code=junk" in body:
            await release.wait()
            return b"{}"
        return answer

    site.sign_in._post = hold_junk

    async def send_junk() -> type[BaseException]:
        _, begun = await site.sign_in.start_login()
        with pytest.raises((SignInFailed, RateLimited)) as refusal:
            await site.sign_in.finish_login(begun, {"code": "junk", "state": begun.state}, address="192.0.2.1")
        return refusal.type

    junk = [asyncio.create_task(send_junk()) for _ in range(120)]
    await _let_tasks_run()
    # Four of the issuer's eight slots are taken, 16 wait, and the others were refused.
    assert (len(site.requests), sum(each.done() for each in junk)) == (4, 100)
    assert (await site.complete_login()).user == "ana"
    release.set()
    assert Counter([await each for each in junk]) == {RateLimited: 100, SignInFailed: 20}

    # After so many failures fewer of this address wait, until a minute is over.
    release.clear()
    junk = [asyncio.create_task(send_junk()) for _ in range(20)]
    await _let_tasks_run()
    assert sum(each.done() for each in junk) == 16
    release.set()
    assert Counter([await each for each in junk]) == {RateLimited: 16, SignInFailed: 4}


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"id_token": 7}', b'{"id_token": "\xc3\xa9"}', b"<html>"])
async def test_an_invalid_token_response_fails_the_login(answer: bytes) -> None:
    site = FakeOidcProvider()
    site.answer = answer
    with pytest.raises(Problem):
        await site.complete_login()


async def test_the_client_secret_is_sent_as_the_issuer_requires(tmp_path: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_text("p+ss word\n")
    secret.chmod(0o600)
    header = FakeOidcProvider(secret_file=secret)
    await header.complete_login()
    assert header.requests[0][2]["authorization"] == "Basic " + base64.b64encode(b"console:p%2Bss+word").decode()
    assert "client_secret" not in header.requests[0][1]
    form = FakeOidcProvider(secret_file=secret, token_endpoint_auth_methods_supported=["client_secret_post"])
    await form.complete_login()
    assert "authorization" not in form.requests[0][2]
    assert (form.requests[0][1]["client_id"], form.requests[0][1]["client_secret"]) == ([CLIENT], ["p+ss word"])


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://other.example"},
        {"authorization_endpoint": None},
        {"authorization_endpoint": "http://elsewhere.example/auth"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"token_endpoint": "http://169.254.169.254/"},
        {"token_endpoint": "https://user:password@issuer.example/token"},
    ],
    ids=str,
)
async def test_an_unsafe_authorization_endpoint_is_rejected(document: dict[str, Any]) -> None:
    with pytest.raises(Unavailable):
        await FakeOidcProvider(**document).sign_in.start_login()


@pytest.mark.parametrize(
    ("console", "issuer", "base", "told"),
    [
        ({"issuer": "https://other.example"}, {}, "https://g.example", "not among identity.issuers"),
        ({}, {"human": False}, "https://g.example", "human = true"),
        ({"client_id": None}, {}, "https://g.example", "console.client_id"),
        ({}, {}, None, "console_url"),
        ({}, {}, "http://gateway.internal", "https URL"),
        ({}, {}, "https://gateway.example?x=1", "https URL"),
    ],
    ids=str,
)
def test_unusable_sign_in_settings_are_reported_at_startup(
    console: dict[str, Any], issuer: dict[str, Any], base: str | None, told: str
) -> None:
    identity = IdentitySettings(
        issuers=(FakeIssuer().issuer(human=True, **issuer) if not issuer else FakeIssuer().issuer(**issuer),)
    )
    with pytest.raises(ConfigError, match=told):
        check_console_settings(ConsoleSettings(**{"issuer": ISSUER, "client_id": CLIENT, **console}), identity, base)


def test_a_local_console_needs_no_tls() -> None:
    check_console_settings(ConsoleSettings(), IdentitySettings(), None)
    identity = IdentitySettings(issuers=(FakeIssuer().issuer(human=True),))
    check_console_settings(ConsoleSettings(issuer=ISSUER, client_id=CLIENT), identity, "http://127.0.0.1:7070")
