"""Lending only ever shrinks: each limit by itself, and all of them over chains nobody thought of."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deputize.catalog.versions import in_range
from deputize.core.caller import ADMIN_SCOPE, BREAK_GLASS_SCOPE, Caller, Capability
from deputize.core.contract import Effects
from deputize.core.errors import ExchangeRefused, Revoked, TokenIssuer
from deputize.core.settings import Issuer
from deputize.govern.identity.claims import delegate_of, still_vouched_for
from deputize.govern.identity.exchange import Asked, Delegation, claims_of, shrunk
from deputize.govern.identity.revocations import TenantRevocations

pytestmark = pytest.mark.requirement("GOV-1")

NOW = 1_800_000_000
LONGEST = 3600
OWN = Issuer(issuer="https://gateway.example/t/acme", audience="https://gateway.example", tenant="acme")
EFFECTS = (Effects.READ, Effects.WRITE, Effects.DESTRUCTIVE)
ANA = Caller(
    tenant="acme", user="ana", scopes=frozenset({"crm:read", "crm:write", ADMIN_SCOPE}), issuer="https://idp.example",
    expires_at=NOW + 7200, token_id="t-1",
)  # fmt: skip


def lend(caller: Caller, number: int = 1, **asked: Any) -> Delegation:
    return shrunk(
        caller, Asked(**{"agent": "bot", **asked}), id=f"00000000-0000-7000-8000-{number:012}", now=NOW,
        longest=LONGEST, in_range=in_range,
    )  # fmt: skip


def held_by(made: Delegation, lender: Caller) -> Caller:
    """Whoever holds the token of a delegation, as the gateway reads it back."""
    claims = {**claims_of(made, lender, audience=OWN.audience), "iss": OWN.issuer}
    return delegate_of(claims, OWN, now=NOW, leeway=0)


def capability(text: str) -> Capability:
    tool, _, versions = text.partition("@")
    return Capability(tool=tool, versions=versions or "*")


def test_what_people_do_in_an_emergency_is_not_lent_unless_it_is_named() -> None:
    ana = replace(ANA, scopes=ANA.scopes | {BREAK_GLASS_SCOPE})
    assert BREAK_GLASS_SCOPE not in lend(ana).scopes


def test_without_wishes_everything_is_lent_but_to_administer() -> None:
    made = lend(ANA)
    assert made.scopes == {"crm:read", "crm:write"}
    assert (made.tools, made.ceiling, made.task) == (None, None, None)
    assert made.not_after == NOW + LONGEST
    assert lend(ANA, scopes=frozenset({ADMIN_SCOPE})).scopes == {ADMIN_SCOPE}


def test_the_new_agent_stands_before_the_others_and_the_new_grant_before_the_old() -> None:
    first = lend(ANA, 1, agent="planner")
    second = lend(held_by(first, ANA), 2, agent="worker")
    assert second.agents == ("worker", "planner")
    assert second.grants == (second.id, first.id)
    assert second.parent == first.id
    again = held_by(second, held_by(first, ANA))
    assert (again.user, again.agents, again.grants) == ("ana", second.agents, second.grants)


@pytest.mark.parametrize(
    ("holds", "wants", "good"),
    [
        ("crm.get@^1", "crm.get@^1", True), ("crm.get@^1", "crm.get@1.2.3", True), ("crm.get", "crm.get@^7", True),
        ("crm.get@*", "crm.get@so-so", True), ("crm.get@^1", "crm.get@2.0.0", False), ("crm.get@^1", "crm.get", False),
        ("crm.get@^1", "crm.get@^1.2", False), ("crm.get@1.2.3", "crm.get@^1", False), ("crm.get", "crm.put", False),
        ("crm.get@^1", "crm.get@latest", False),
    ],
)  # fmt: skip
def test_tools_are_lent_only_in_versions_that_are_surely_held(holds: str, wants: str, good: bool) -> None:
    caller = replace(ANA, capabilities=(capability("other.tool"), capability(holds)))
    if good:
        assert lend(caller, tools=(capability(wants),)).tools == (capability(wants),)
    else:
        with pytest.raises(ExchangeRefused) as refused:
            lend(caller, tools=(capability(wants),))
        assert refused.value.details["rule"] == "exchange-tools"


@pytest.mark.parametrize(
    ("caller", "asked", "rule"),
    [
        (ANA, {"scopes": frozenset({"crm:read", "hr:read"})}, "exchange-scopes"),
        (replace(ANA, ceiling=Effects.READ), {"ceiling": Effects.WRITE}, "exchange-ceiling"),
        (replace(ANA, ceiling=Effects.WRITE), {"ceiling": Effects.DESTRUCTIVE}, "exchange-ceiling"),
        (replace(ANA, task="one"), {"task": "two"}, "exchange-task"),
        (ANA, {"task": "a\0"}, "exchange-task"),
        (ANA, {"lifetime": 0}, "exchange-lifetime"),
        (replace(ANA, expires_at=NOW), {}, "exchange-lifetime"),
        (replace(ANA, agents=("a",) * 8), {}, "exchange-agent"),
        (ANA, {"agent": ""}, "exchange-agent"),
        (ANA, {"agent": "a\nb"}, "exchange-agent"),
        (ANA, {"agent": "a" * 513}, "exchange-agent"),
        (ANA, {"agent": "did:key:z6Mk"}, "exchange-agent"),
        (replace(ANA, capabilities=()), {"tools": (capability("crm.get"),)}, "exchange-tools"),
        (ANA, {"tools": tuple(capability(f"crm.t{n}") for n in range(257))}, "exchange-tools"),
    ],
)
def test_more_than_is_held_is_refused_by_the_rule_it_breaks(caller: Caller, asked: dict[str, Any], rule: str) -> None:
    with pytest.raises(ExchangeRefused) as refused:
        lend(caller, **asked)
    assert refused.value.details["rule"] == rule


def test_a_did_that_proved_itself_is_taken() -> None:
    assert lend(ANA, agent="did:key:z6Mk", proven=True).agents == ("did:key:z6Mk",)


def test_no_delegation_outlives_the_token_the_settings_or_what_was_asked_for() -> None:
    assert lend(ANA, lifetime=60).not_after == NOW + 60
    assert lend(ANA, lifetime=99_999).not_after == NOW + LONGEST
    assert lend(replace(ANA, expires_at=NOW + 5), lifetime=60).not_after == NOW + 5


def test_where_authority_came_from_is_not_laundered_by_lending_it() -> None:
    caller = replace(ANA, trust="untrusted", groups=frozenset({"guests"}), session="s-1", auth_time=NOW - 9, human=True)
    again = held_by(lend(held_by(lend(caller), caller), 2), held_by(lend(caller), caller))
    assert (again.issuer, again.trust) == ("https://idp.example", "untrusted")
    assert again.groups == {"guests"}
    assert (again.session, again.auth_time) == ("s-1", NOW - 9)
    assert not again.human


WORDS = ["a", "b", "c", "d", ADMIN_SCOPE]
TOOLS = ["crm.get", "crm.put", "hr.list"]
VERSIONS = ["1.0.0", "1.2.3", "1.9.0", "2.0.0", "2.0.0-rc.1", "0.3.1"]
RANGES = ["*", "^1", "^1.2", "~1.2.3", "1.x", "1.2.3", "2.0.0", "latest", "1", "so-so", "^0.3"]
scopes = st.frozensets(st.sampled_from(WORDS))
tools = st.lists(st.builds(Capability, tool=st.sampled_from(TOOLS), versions=st.sampled_from(RANGES)), max_size=4).map(
    tuple
)
callers = st.builds(
    Caller,
    tenant=st.just("acme"),
    user=st.just("ana"),
    agents=st.lists(st.sampled_from(["x", "y"]), max_size=2).map(tuple),
    scopes=scopes,
    capabilities=st.none() | tools,
    issuer=st.just("https://idp.example"),
    trust=st.sampled_from(["untrusted", "standard", "trusted"]),
    expires_at=st.integers(NOW - 10, NOW + 10_000),
    ceiling=st.none() | st.sampled_from(EFFECTS),
    task=st.none() | st.sampled_from(["t-1", "t-2"]),
    token_id=st.just("t"),
)
wishes = st.builds(
    Asked,
    agent=st.sampled_from(["bot", "worker", "did:key:z6Mk"]),
    proven=st.booleans(),
    scopes=st.none() | scopes,
    tools=st.none() | tools,
    ceiling=st.none() | st.sampled_from(EFFECTS),
    task=st.none() | st.sampled_from(["t-1", "t-2"]),
    lifetime=st.none() | st.integers(-5, 10_000),
)


def may(caller: Caller, tool: str, version: str) -> bool:
    """What a capability means where calls are decided."""
    listed = caller.capabilities
    return listed is None or any(each.tool == tool and in_range(each.versions, version) for each in listed)


def allows(caller: Caller) -> set[Effects]:
    return set(EFFECTS if caller.ceiling is None else EFFECTS[: EFFECTS.index(caller.ceiling) + 1])


@settings(max_examples=400, deadline=None)
@given(first=callers, chain=st.lists(wishes, min_size=1, max_size=10))
def test_over_any_chain_authority_only_shrinks(first: Caller, chain: list[Asked]) -> None:
    holder = first
    for number, asked in enumerate(chain):
        try:
            made = shrunk(
                holder, asked, id=f"00000000-0000-7000-8000-{number:012}", now=NOW, longest=LONGEST, in_range=in_range
            )
        except ExchangeRefused:
            continue
        lent = held_by(made, holder)
        assert lent.scopes <= holder.scopes
        assert all(may(holder, tool, version) for tool in TOOLS for version in VERSIONS if may(lent, tool, version))
        assert allows(lent) <= allows(holder)
        assert NOW < lent.expires_at <= min(holder.expires_at, NOW + LONGEST)
        assert lent.agents == (asked.agent, *holder.agents)
        assert lent.grants[1:] == holder.grants
        assert holder.task in (None, lent.task)
        assert (lent.tenant, lent.user, lent.issuer, lent.trust, lent.human) == (
            first.tenant, first.user, first.issuer, first.trust, False,
        )  # fmt: skip
        # Nothing was gained on the way into the token and out again.
        assert (lent.scopes, lent.capabilities, lent.ceiling) == (made.scopes, made.tools, made.ceiling)
        holder = lent


@settings(max_examples=200, deadline=None)
@given(caller=callers, asked=wishes)
def test_what_lies_within_is_never_refused(caller: Caller, asked: Asked) -> None:
    """The other side: a wish for exactly what is held, or less of it, is granted."""
    caller = replace(caller, expires_at=NOW + 100)
    within = Asked(
        agent="bot", scopes=None if asked.scopes is None else asked.scopes & caller.scopes, tools=caller.capabilities,
        ceiling=caller.ceiling, task=caller.task, lifetime=50,
    )  # fmt: skip
    made = shrunk(
        caller, within, id="00000000-0000-7000-8000-000000000000", now=NOW, longest=LONGEST, in_range=in_range
    )
    assert made.not_after == NOW + 50


def test_what_was_lent_is_worth_no_more_than_its_issuer_is_now() -> None:
    lent = held_by(lend(replace(ANA, trust="trusted")), replace(ANA, trust="trusted"))
    now = Issuer(issuer=ANA.issuer, audience="a", tenant="acme", trust="untrusted")
    lowered = still_vouched_for(lent, now)
    assert (lowered.trust, lowered.standing == lent.standing) == ("untrusted", False)
    assert still_vouched_for(lent, now.model_copy(update={"trust": "trusted"})) is lent
    assert still_vouched_for(lowered, now.model_copy(update={"trust": "trusted"})).trust == "untrusted"
    for gone in (None, now.model_copy(update={"tenant": "other"})):
        with pytest.raises(TokenIssuer):
            still_vouched_for(lent, gone)


def test_a_revoked_token_takes_everything_with_it_that_was_lent_from_it() -> None:
    first = held_by(lend(ANA), ANA)
    second = held_by(lend(first, 2, agent="helper"), first)
    for revoked in (ANA.token_id, first.token_id, second.token_id):
        with pytest.raises(Revoked):
            TenantRevocations(tokens=frozenset({revoked})).check(second)
    TenantRevocations(tokens=frozenset({second.token_id, "t-2"})).check(first)
