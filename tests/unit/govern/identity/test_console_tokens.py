"""Console tokens: who gets one, what it allows, and what it does not."""

from typing import Any

import pytest

from deputize.core.caller import Caller
from deputize.core.config_error import ConfigError
from deputize.core.errors import TokenAudienceMismatch, TokenMalformed
from deputize.lifecycle.recording.stored_call import restore_caller, serialize_caller
from tests.support.fake_issuer import AUDIENCE, ISSUER, NOW, FakeIssuer, sign_token

pytestmark = pytest.mark.requirement("GOV-3")

CONSOLE = "https://gateway.example/console"
GRANT = "0190b6a0-0000-7000-8000-000000000001"
PEOPLE: dict[str, Any] = {"human": True, "console_audience": CONSOLE}


@pytest.fixture
def fake_issuer() -> FakeIssuer:
    return FakeIssuer()


async def _verify_approver(fake_issuer: FakeIssuer, settings: dict[str, Any] | None = None, **changes: Any) -> Caller:
    verifier = fake_issuer.verifier(**(PEOPLE if settings is None else settings))
    return await verifier.verify_caller(sign_token(auth_time=NOW - 5, **changes), allow_console_only=True)


async def test_a_console_token_only_decides(fake_issuer: FakeIssuer) -> None:
    ana = await _verify_approver(fake_issuer, aud=CONSOLE, amr=["pwd", "hwk"], acr="phr", groups=["oncall"])
    assert (ana.human, ana.console, ana.only_decides, ana.auth_time) == (True, True, True, NOW - 5)
    assert (set(ana.methods), set(ana.groups)) == ({"pwd", "hwk", "phr"}, {"oncall"})


async def test_a_console_token_neither_calls_nor_delegates(fake_issuer: FakeIssuer) -> None:
    verifier, mine = fake_issuer.verifier(**PEOPLE), sign_token(auth_time=NOW, aud=CONSOLE)
    for _ in range(2):
        for use in (verifier.verify_caller(mine), verifier.verify_token(mine), verifier.verify_actor(mine, "acme")):
            with pytest.raises(TokenAudienceMismatch, match="only for deciding approval requests"):
                await use
        # Remembered once it has decided something, and even then known to nobody else.
        assert (await verifier.verify_caller(mine, allow_console_only=True)).console
        assert verifier.get_cached_caller(mine) is None
        assert verifier.get_cached_caller(mine, allow_console_only=True) is not None


async def test_a_call_token_cannot_decide(fake_issuer: FakeIssuer) -> None:
    ana = await _verify_approver(fake_issuer)
    assert (ana.human, ana.console, ana.only_decides) == (True, False, False)


@pytest.mark.parametrize("audience", [[AUDIENCE, CONSOLE], [CONSOLE, AUDIENCE, f"{ISSUER}/userinfo"]])
async def test_a_token_with_both_audiences_calls_and_decides(fake_issuer: FakeIssuer, audience: list[str]) -> None:
    ana = await _verify_approver(fake_issuer, aud=audience)
    assert (ana.console, ana.only_decides) == (True, False)
    assert (await fake_issuer.verifier(**PEOPLE).verify_caller(sign_token(aud=audience))).console


async def test_one_audience_can_serve_calls_and_console(fake_issuer: FakeIssuer) -> None:
    ana = await _verify_approver(fake_issuer, {"human": True, "console_audience": AUDIENCE})
    assert (ana.console, ana.only_decides) == (True, False)


async def test_a_console_token_with_other_audiences_is_rejected(fake_issuer: FakeIssuer) -> None:
    with pytest.raises(TokenAudienceMismatch, match="other audiences"):
        await _verify_approver(fake_issuer, aud=[CONSOLE, "https://elsewhere.example"])


async def test_no_token_decides_without_a_console_audience(fake_issuer: FakeIssuer) -> None:
    assert not (await _verify_approver(fake_issuer, {"human": True})).console
    with pytest.raises(TokenAudienceMismatch, match="not this gateway"):
        await _verify_approver(fake_issuer, {"human": True}, aud=CONSOLE)


DELEGATED_CLAIMS: tuple[dict[str, Any], ...] = (
    {"act": {"sub": "bot"}}, {"may_act": {"sub": "bot"}}, {"grants": [GRANT]}, {"tools": []}, {"ceiling": "read"},
    {"task": "invoices"}, {"origin": ISSUER}, {"client_id": "ana"}, {"azp": "ana"}, {"idtyp": "app"},
    {"gty": "client-credentials"},
)  # fmt: skip


@pytest.mark.parametrize("handed_on", DELEGATED_CLAIMS)
async def test_delegated_and_client_tokens_are_no_console_tokens(
    fake_issuer: FakeIssuer, handed_on: dict[str, Any]
) -> None:
    with pytest.raises(TokenAudienceMismatch, match="a person who signed in"):
        await _verify_approver(fake_issuer, aud=CONSOLE, **handed_on)
    both = await _verify_approver(fake_issuer, aud=[AUDIENCE, CONSOLE], **handed_on)
    assert (both.console, both.only_decides) == (False, False)


@pytest.mark.parametrize(
    "settings",
    [
        {"console_audience": CONSOLE}, {"human": True, "console_audience": ""},
        {"human": True, "development": True, "console_audience": CONSOLE},
        {"human": True, "console_audience": CONSOLE, "issuer": "did:web:issuer.example", "jwks_url": None},
    ],
)  # fmt: skip
def test_a_console_audience_needs_a_human_issuer(fake_issuer: FakeIssuer, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="console_audience"):
        fake_issuer.verifier(**settings)


@pytest.mark.parametrize(
    ("signed_in", "methods"),
    [
        ({}, set()), ({"amr": "otp"}, {"otp"}), ({"acr": "urn:mace:silver"}, {"urn:mace:silver"}),
        ({"amr": ["hwk", 7, None, "", "a\nb", "x" * 256, {}]}, {"hwk"}), ({"amr": {"hwk": True}, "acr": 3}, set()),
        ({"amr": [f"m{n}" for n in range(40)]}, {f"m{n}" for n in range(32)}),
    ],
)  # fmt: skip
async def test_authentication_methods_are_parsed(
    fake_issuer: FakeIssuer, signed_in: dict[str, Any], methods: set[str]
) -> None:
    assert (await _verify_approver(fake_issuer, aud=CONSOLE, **signed_in)).methods == methods


async def test_a_future_auth_time_rejects_the_token(fake_issuer: FakeIssuer) -> None:
    with pytest.raises(TokenMalformed, match="auth_time"):
        await fake_issuer.verifier(**PEOPLE).verify_caller(
            sign_token(aud=CONSOLE, auth_time=NOW + 60), allow_console_only=True
        )


async def test_the_same_person_has_the_same_name_under_every_audience(fake_issuer: FakeIssuer) -> None:
    """Some issuers give a person another name per audience; then self-approval could not be detected."""
    settings = {**PEOPLE, "subject_claim": "oid"}
    requester = await _verify_approver(fake_issuer, settings, sub="pairwise-1", oid="0042")
    decider = await _verify_approver(fake_issuer, settings, sub="pairwise-2", oid="0042", aud=CONSOLE)
    assert requester.user == decider.user == "0042"
    with pytest.raises(TokenMalformed, match="oid"):
        await _verify_approver(fake_issuer, settings, aud=CONSOLE)


async def test_a_stored_caller_never_becomes_a_console_caller(fake_issuer: FakeIssuer) -> None:
    ana = await _verify_approver(fake_issuer, aud=[AUDIENCE, CONSOLE], amr=["hwk"])
    again = restore_caller(serialize_caller(ana), [fake_issuer.issuer(**PEOPLE)])
    assert (again.user, again.console, again.only_decides, again.methods) == ("ana", False, False, frozenset())
