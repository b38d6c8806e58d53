"""Signing in: where people are sent, what they must bring back, and who an ID token makes of them."""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from deputize.core.errors import Problem, SignInFailed, TokenAudience, TokenMalformed, TokenSignature, Unavailable
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Console, Identity
from deputize.govern.identity.sign_in import BEGUN_SECONDS, SignIn, check_console
from tests.unit.govern.identity.tokens_kit import ISSUER, NOW, World, token

pytestmark = pytest.mark.requirement("GOV-3")

CLIENT = "console"
BACK = "https://gateway.example/console/callback"
DOCUMENT = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/auth",
    "token_endpoint": f"{ISSUER}/token",
    "jwks_uri": f"{ISSUER}/jwks",
}


class Site:
    """An issuer where people sign in, and what it was sent."""

    def __init__(self, *, secret_file: Any = None, **document: Any) -> None:
        self.world = World()
        self.document: dict[str, Any] = {**DOCUMENT, **document}
        self.claims: dict[str, Any] = {}
        self.answer: bytes | None = None
        self.sent: list[tuple[str, dict[str, list[str]], Mapping[str, str]]] = []
        self.made = token
        console = Console(issuer=ISSUER, client_id=CLIENT, client_secret_file=secret_file, scopes=("groups",))
        self.sign_in = SignIn(
            console, self.world.verifier(human=True), self.world.time.clock, self.fetch, self.post,
            fresh_seconds=900, back_to=BACK,
        )  # fmt: skip

    async def fetch(self, url: str) -> bytes:
        if url.endswith("openid-configuration"):
            return json.dumps(self.document).encode()
        raise OSError("nothing there")

    async def post(self, url: str, body: bytes, *, headers: Mapping[str, str]) -> bytes:
        self.sent.append((url, parse_qs(body.decode()), headers))
        if self.answer is not None:
            return self.answer
        return json.dumps({"id_token": self.made(**self.claims).decode()}).encode()

    async def come_back(self, *, again: bool = False, answer: Mapping[str, str] | None = None, **claims: Any) -> Any:
        """One sign-in; the claims replace those of a good ID token."""
        _, begun = await self.sign_in.begin(again=again)
        self.claims = {"aud": CLIENT, "nonce": begun.nonce, "auth_time": NOW - 60, "at_hash": "x", **claims}
        return await self.sign_in.finish(begun, {"code": "c", "state": begun.state, **(answer or {})})


async def test_people_are_sent_to_the_issuer_with_everything_that_binds_them_to_this_browser() -> None:
    url, begun = await Site().sign_in.begin()
    asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    challenge = base64.urlsafe_b64encode(hashlib.sha256(begun.verifier.encode()).digest()).rstrip(b"=").decode()
    assert url.startswith(f"{ISSUER}/auth?")
    assert asked == {
        "response_type": "code", "client_id": CLIENT, "redirect_uri": BACK, "scope": "openid groups",
        "state": begun.state, "nonce": begun.nonce, "code_challenge": challenge, "code_challenge_method": "S256",
        "max_age": "900",
    }  # fmt: skip
    assert len({begun.state, begun.nonce, begun.verifier}) == 3
    assert min(map(len, (begun.state, begun.nonce, begun.verifier))) >= 43


async def test_a_new_sign_in_is_asked_for_where_the_last_is_not_good_enough() -> None:
    url, _ = await Site().sign_in.begin(again=True, level="hwk")
    asked = parse_qs(urlsplit(url).query)
    assert (asked["max_age"], asked["prompt"], asked["acr_values"]) == (["0"], ["login"], ["hwk"])


async def test_whoever_comes_back_is_a_caller_who_is_there_in_person() -> None:
    site = Site()
    caller = await site.come_back(groups=["oncall"], amr=["hwk", "pwd"], acr="gold", sid="s")
    assert (caller.tenant, caller.user, caller.issuer, caller.groups) == ("acme", "ana", ISSUER, {"oncall"})
    assert (caller.human, caller.console, caller.only_decides, caller.agents) == (True, True, True, ())
    assert caller.methods == {"hwk", "pwd", "gold"}
    assert (caller.auth_time, caller.expires_at, caller.token_id) == (NOW - 60, NOW + 900, "t-1")
    url, form, _ = site.sent[0]
    assert url == f"{ISSUER}/token"
    assert (form["grant_type"], form["code"], form["redirect_uri"]) == (["authorization_code"], ["c"], [BACK])
    assert form["client_id"] == [CLIENT]
    assert len(form["code_verifier"][0]) >= 43


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"nonce": "another"}, TokenMalformed),
        ({"nonce": None}, TokenMalformed),
        ({"aud": "https://gateway.example/else"}, TokenAudience),
        ({"aud": [CLIENT, "somebody else"]}, TokenAudience),
        ({"azp": "another client"}, TokenMalformed),
        ({"iss": "https://other.example"}, TokenMalformed),
        ({"exp": NOW - 60}, Problem),
        ({"auth_time": None}, SignInFailed),
        ({"auth_time": NOW - 906}, SignInFailed),
        ({"auth_time": NOW + 600}, TokenMalformed),
        ({"events": {}}, TokenMalformed),
        ({"act": {"sub": "bot"}}, TokenAudience),
        ({"may_act": {"sub": "bot"}}, TokenAudience),
        ({"sub": CLIENT, "azp": CLIENT}, TokenAudience),
        ({"sub": None}, TokenMalformed),
        ({"sub": "a\nb"}, TokenMalformed),
    ],
    ids=str,
)
async def test_an_id_token_that_is_not_of_this_sign_in_makes_nobody(
    claims: dict[str, Any], problem: type[Problem]
) -> None:
    with pytest.raises(problem):
        await Site().come_back(**claims)


async def test_an_access_token_is_no_id_token() -> None:
    site = Site()
    site.made = lambda **claims: token(headers={"typ": "at+jwt"}, **claims)
    with pytest.raises(TokenMalformed):
        await site.come_back()


async def test_a_signature_of_somebody_else_makes_nobody() -> None:
    site = Site()
    site.made = lambda **claims: token(number=1, **claims)
    with pytest.raises(TokenSignature):
        await site.come_back()


async def test_who_was_asked_to_sign_in_anew_must_have_done_so() -> None:
    with pytest.raises(SignInFailed):
        await Site().come_back(again=True, auth_time=NOW - 10)
    caller = await Site().come_back(again=True, auth_time=NOW)
    assert caller.auth_time == NOW


@pytest.mark.parametrize(
    "answer",
    [{"state": "another"}, {"state": ""}, {"code": ""}, {"code": "c" * 4097}, {"iss": "https://mixed.example"}],
    ids=str,
)
async def test_an_answer_that_was_not_asked_for_is_refused_before_the_issuer_is_asked(answer: dict[str, str]) -> None:
    site = Site()
    with pytest.raises(SignInFailed):
        await site.come_back(answer=answer)
    assert site.sent == []


async def test_an_issuer_that_names_itself_must_do_so() -> None:
    named = Site(authorization_response_iss_parameter_supported=True)
    with pytest.raises(SignInFailed):
        await named.come_back()
    assert (await named.come_back(answer={"iss": ISSUER})).user == "ana"


async def test_the_issuers_own_word_is_told_and_nothing_anybody_could_write() -> None:
    with pytest.raises(SignInFailed, match="access_denied"):
        await Site().come_back(answer={"code": "", "error": "access_denied"})
    with pytest.raises(SignInFailed, match="no code came back"):
        await Site().come_back(answer={"code": "", "error": "<b>call 555 1234</b>"})


async def test_what_was_begun_long_ago_is_over() -> None:
    site = Site()
    _, begun = await site.sign_in.begin()
    site.world.time.seconds = BEGUN_SECONDS + 1
    with pytest.raises(SignInFailed):
        await site.sign_in.finish(begun, {"code": "c", "state": begun.state})


async def test_a_code_goes_with_the_verifier_of_its_own_browser() -> None:
    site = Site()
    _, begun = await site.sign_in.begin()
    site.claims = {"aud": CLIENT, "nonce": begun.nonce, "auth_time": NOW}
    stolen = replace(begun, verifier="of another browser")
    await site.sign_in.finish(stolen, {"code": "c", "state": begun.state})
    # Whether it fits is the issuer's to see: what matters is that ours is sent, and none that came along.
    assert site.sent[0][1]["code_verifier"] == ["of another browser"]


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"id_token": 7}', b'{"id_token": "\xc3\xa9"}', b"<html>"])
async def test_an_issuer_that_answers_nonsense_lets_nobody_in(answer: bytes) -> None:
    site = Site()
    site.answer = answer
    with pytest.raises(Problem):
        await site.come_back()


async def test_a_secret_goes_where_the_issuer_wants_it(tmp_path: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_text("p+ss word\n")
    secret.chmod(0o600)
    header = Site(secret_file=secret)
    await header.come_back()
    assert header.sent[0][2]["authorization"] == "Basic " + base64.b64encode(b"console:p%2Bss+word").decode()
    assert "client_secret" not in header.sent[0][1]
    form = Site(secret_file=secret, token_endpoint_auth_methods_supported=["client_secret_post"])
    await form.come_back()
    assert "authorization" not in form.sent[0][2]
    assert (form.sent[0][1]["client_id"], form.sent[0][1]["client_secret"]) == ([CLIENT], ["p+ss word"])


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
async def test_nobody_is_sent_where_a_document_should_not_lead(document: dict[str, Any]) -> None:
    with pytest.raises(Unavailable):
        await Site(**document).sign_in.begin()


@pytest.mark.parametrize(
    ("console", "issuer", "base", "told"),
    [
        ({"issuer": "https://other.example"}, {}, "https://g.example", "not among identity.issuers"),
        ({}, {"human": False}, "https://g.example", "human = true"),
        ({"client_id": None}, {}, "https://g.example", "console.client_id"),
        ({}, {}, None, "console_url"),
        ({}, {}, "http://gateway.internal", "https address"),
        ({}, {}, "https://gateway.example?x=1", "https address"),
    ],
    ids=str,
)
def test_settings_that_could_let_nobody_in_are_told_at_start(
    console: dict[str, Any], issuer: dict[str, Any], base: str | None, told: str
) -> None:
    identity = Identity(issuers=(World().issuer(human=True, **issuer) if not issuer else World().issuer(**issuer),))
    with pytest.raises(Misconfigured, match=told):
        check_console(Console(**{"issuer": ISSUER, "client_id": CLIENT, **console}), identity, base)


def test_a_gateway_without_a_console_needs_nothing_and_one_on_this_machine_no_tls() -> None:
    check_console(Console(), Identity(), None)
    identity = Identity(issuers=(World().issuer(human=True),))
    check_console(Console(issuer=ISSUER, client_id=CLIENT), identity, "http://127.0.0.1:7070")
