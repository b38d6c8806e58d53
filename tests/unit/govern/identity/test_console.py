"""Tokens people decide with: who gets one, what it is good for, and what it is not."""

from typing import Any

import pytest

from deputize.core.caller import Caller
from deputize.core.errors import TokenAudience, TokenMalformed
from deputize.core.mistakes import Misconfigured
from deputize.lifecycle.recorded import caller_bytes, caller_from
from tests.unit.govern.identity.tokens_kit import AUDIENCE, ISSUER, NOW, World, token

pytestmark = pytest.mark.requirement("GOV-3")

CONSOLE = "https://gateway.example/console"
GRANT = "0190b6a0-0000-7000-8000-000000000001"
PEOPLE: dict[str, Any] = {"human": True, "console_audience": CONSOLE}


@pytest.fixture
def world() -> World:
    return World()


async def _decider(world: World, settings: dict[str, Any] | None = None, **changes: Any) -> Caller:
    verifier = world.verifier(**(PEOPLE if settings is None else settings))
    return await verifier.verify(token(auth_time=NOW - 5, **changes), deciding=True)


async def test_a_person_who_signed_in_for_the_console_decides_and_does_nothing_else(world: World) -> None:
    ana = await _decider(world, aud=CONSOLE, amr=["pwd", "hwk"], acr="phr", groups=["oncall"])
    assert (ana.human, ana.console, ana.only_decides, ana.auth_time) == (True, True, True, NOW - 5)
    assert (set(ana.methods), set(ana.groups)) == ({"pwd", "hwk", "phr"}, {"oncall"})


async def test_a_token_for_the_console_makes_no_call_and_lends_nothing(world: World) -> None:
    verifier, mine = world.verifier(**PEOPLE), token(auth_time=NOW, aud=CONSOLE)
    for _ in range(2):
        for use in (verifier.verify(mine), verifier.examine(mine), verifier.actor(mine, "acme")):
            with pytest.raises(TokenAudience, match="deciding approvals and nothing else"):
                await use
        # Remembered once it has decided something, and even then known to nobody else.
        assert (await verifier.verify(mine, deciding=True)).console
        assert verifier.cached(mine) is None
        assert verifier.cached(mine, deciding=True) is not None


async def test_a_token_for_calls_decides_nothing(world: World) -> None:
    ana = await _decider(world)
    assert (ana.human, ana.console, ana.only_decides) == (True, False, False)


@pytest.mark.parametrize("audience", [[AUDIENCE, CONSOLE], [CONSOLE, AUDIENCE, f"{ISSUER}/userinfo"]])
async def test_a_token_for_both_is_good_for_both(world: World, audience: list[str]) -> None:
    ana = await _decider(world, aud=audience)
    assert (ana.console, ana.only_decides) == (True, False)
    assert (await world.verifier(**PEOPLE).verify(token(aud=audience))).console


async def test_one_audience_for_both_is_good_for_both(world: World) -> None:
    ana = await _decider(world, {"human": True, "console_audience": AUDIENCE})
    assert (ana.console, ana.only_decides) == (True, False)


async def test_who_else_may_use_a_token_may_not_decide_with_it(world: World) -> None:
    with pytest.raises(TokenAudience, match="others"):
        await _decider(world, aud=[CONSOLE, "https://elsewhere.example"])


async def test_without_a_console_audience_nobody_decides(world: World) -> None:
    assert not (await _decider(world, {"human": True})).console
    with pytest.raises(TokenAudience, match="not this gateway"):
        await _decider(world, {"human": True}, aud=CONSOLE)


HANDED_ON: tuple[dict[str, Any], ...] = (
    {"act": {"sub": "bot"}}, {"may_act": {"sub": "bot"}}, {"grants": [GRANT]}, {"tools": []}, {"ceiling": "read"},
    {"task": "invoices"}, {"origin": ISSUER}, {"client_id": "ana"}, {"azp": "ana"}, {"idtyp": "app"},
    {"gty": "client-credentials"},
)  # fmt: skip


@pytest.mark.parametrize("handed_on", HANDED_ON)
async def test_what_is_lent_or_a_programs_is_no_console_token(world: World, handed_on: dict[str, Any]) -> None:
    with pytest.raises(TokenAudience, match="a person who signed in"):
        await _decider(world, aud=CONSOLE, **handed_on)
    both = await _decider(world, aud=[AUDIENCE, CONSOLE], **handed_on)
    assert (both.console, both.only_decides) == (False, False)


@pytest.mark.parametrize(
    "settings",
    [
        {"console_audience": CONSOLE}, {"human": True, "console_audience": ""},
        {"human": True, "development": True, "console_audience": CONSOLE},
        {"human": True, "console_audience": CONSOLE, "issuer": "did:web:issuer.example", "jwks_url": None},
    ],
)  # fmt: skip
def test_a_console_audience_without_people_is_a_mistake(world: World, settings: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="console_audience"):
        world.verifier(**settings)


@pytest.mark.parametrize(
    ("signed_in", "methods"),
    [
        ({}, set()), ({"amr": "otp"}, {"otp"}), ({"acr": "urn:mace:silver"}, {"urn:mace:silver"}),
        ({"amr": ["hwk", 7, None, "", "a\nb", "x" * 256, {}]}, {"hwk"}), ({"amr": {"hwk": True}, "acr": 3}, set()),
        ({"amr": [f"m{n}" for n in range(40)]}, {f"m{n}" for n in range(32)}),
    ],
)  # fmt: skip
async def test_how_somebody_signed_in_counts_as_far_as_it_can_be_read(
    world: World, signed_in: dict[str, Any], methods: set[str]
) -> None:
    assert (await _decider(world, aud=CONSOLE, **signed_in)).methods == methods


async def test_a_sign_in_that_is_to_come_refuses_the_token(world: World) -> None:
    with pytest.raises(TokenMalformed, match="auth_time"):
        await world.verifier(**PEOPLE).verify(token(aud=CONSOLE, auth_time=NOW + 60), deciding=True)


async def test_the_same_person_has_the_same_name_under_every_audience(world: World) -> None:
    """Some issuers call one person otherwise for every audience; then the requester would not be known again."""
    settings = {**PEOPLE, "subject_claim": "oid"}
    requester = await _decider(world, settings, sub="pairwise-1", oid="0042")
    decider = await _decider(world, settings, sub="pairwise-2", oid="0042", aud=CONSOLE)
    assert requester.user == decider.user == "0042"
    with pytest.raises(TokenMalformed, match="oid"):
        await _decider(world, settings, aud=CONSOLE)


async def test_nobody_who_was_written_down_comes_back_as_one_who_decides(world: World) -> None:
    ana = await _decider(world, aud=[AUDIENCE, CONSOLE], amr=["hwk"])
    again = caller_from(caller_bytes(ana), [world.issuer(**PEOPLE)])
    assert (again.user, again.console, again.only_decides, again.methods) == ("ana", False, False, frozenset())
