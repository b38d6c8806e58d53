"""Token exchange only narrows authority: each limit by itself, and all of them over random chains."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.catalog.versions import is_in_range
from deputize.core.caller import (
    ADMIN_SCOPE,
    AUDIT_SCOPE,
    BREAK_GLASS_SCOPE,
    OPERATE_SCOPE,
    UNDO_SCOPE,
    Caller,
    Capability,
)
from deputize.core.contract.contract import Effects
from deputize.core.delegation import DelegationRequest
from deputize.core.errors import AuthorityRevoked, ExchangeRefused, TokenIssuerUntrusted
from deputize.core.settings import IssuerSettings
from deputize.govern.identity.claims import apply_origin_trust, build_delegate
from deputize.govern.identity.revocations import TenantRevocations
from deputize.govern.identity.token_exchange import Delegation, build_claims, derive_delegation

pytestmark = pytest.mark.requirement("GOV-1")

NOW = 1_800_000_000
LONGEST = 3600
OWN = IssuerSettings(issuer="https://gateway.example/t/acme", audience="https://gateway.example", tenant="acme")
EFFECTS = (Effects.READ, Effects.WRITE, Effects.DESTRUCTIVE)
ANA = Caller(
    tenant="acme", user="ana", scopes=frozenset({"crm:read", "crm:write", ADMIN_SCOPE}), issuer="https://idp.example",
    expires_at=NOW + 7200, token_id="t-1",
)  # fmt: skip


def delegate(caller: Caller, number: int = 1, **fields: Any) -> Delegation:
    return derive_delegation(
        caller, DelegationRequest(**{"agent": "bot", **fields}), id=f"00000000-0000-7000-8000-{number:012}", now=NOW,
        max_lifetime=LONGEST, is_in_range=is_in_range,
    )  # fmt: skip


def verify_delegate(delegation: Delegation, lender: Caller) -> Caller:
    """Build the caller from a delegation's token, as the gateway does."""
    claims = {**build_claims(delegation, lender, audience=OWN.audience), "iss": OWN.issuer}
    return build_delegate(claims, OWN, now=NOW, leeway=0)


def parse_capability(text: str) -> Capability:
    tool, _, versions = text.partition("@")
    return Capability(tool=tool, versions=versions or "*")


@pytest.mark.parametrize("scope", [ADMIN_SCOPE, OPERATE_SCOPE, AUDIT_SCOPE, UNDO_SCOPE, BREAK_GLASS_SCOPE])
def test_a_scope_of_the_gateway_is_delegated_only_by_name(scope: str) -> None:
    ana = replace(ANA, scopes=ANA.scopes | {scope})
    assert scope not in delegate(ana).scopes


def test_by_default_all_but_the_admin_scope_is_delegated() -> None:
    made = delegate(ANA)
    assert made.scopes == {"crm:read", "crm:write"}
    assert (made.tools, made.ceiling, made.task) == (None, None, None)
    assert made.not_after == NOW + LONGEST
    assert delegate(ANA, scopes=frozenset({ADMIN_SCOPE})).scopes == {ADMIN_SCOPE}


def test_the_newest_agent_and_grant_come_first() -> None:
    first = delegate(ANA, 1, agent="planner")
    second = delegate(verify_delegate(first, ANA), 2, agent="worker")
    assert second.agents == ("worker", "planner")
    assert second.grants == (second.id, first.id)
    assert second.parent == first.id
    again = verify_delegate(second, verify_delegate(first, ANA))
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
def test_tools_are_delegated_only_in_covered_versions(holds: str, wants: str, good: bool) -> None:
    caller = replace(ANA, capabilities=(parse_capability("other.tool"), parse_capability(holds)))
    if good:
        assert delegate(caller, tools=(parse_capability(wants),)).tools == (parse_capability(wants),)
    else:
        with pytest.raises(ExchangeRefused) as refused:
            delegate(caller, tools=(parse_capability(wants),))
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
        (replace(ANA, capabilities=()), {"tools": (parse_capability("crm.get"),)}, "exchange-tools"),
        (ANA, {"tools": tuple(parse_capability(f"crm.t{n}") for n in range(257))}, "exchange-tools"),
    ],
)
def test_excess_authority_is_refused_by_its_rule(caller: Caller, asked: dict[str, Any], rule: str) -> None:
    with pytest.raises(ExchangeRefused) as refused:
        delegate(caller, **asked)
    assert refused.value.details["rule"] == rule


def test_a_did_with_proof_is_accepted() -> None:
    assert delegate(ANA, agent="did:key:z6Mk", proven_by="did:key:z6Mk").agents == ("did:key:z6Mk",)


def test_a_token_says_which_of_its_agents_were_proven_and_by_whom() -> None:
    idp, agents = "https://idp.example", "https://agents.example"
    ana = replace(ANA, agents=("helper",), agent_issuers=(idp,))
    labeled = verify_delegate(delegate(ana, agent="boss"), ana)
    assert (labeled.agents, labeled.agent_issuers) == (("boss", "helper"), ("", idp))
    proven = verify_delegate(delegate(labeled, 2, agent="bot", proven_by=agents), labeled)
    assert (proven.agents, proven.agent_issuers) == (("bot", "boss", "helper"), (agents, "", idp))
    assert proven.participants == ("ana", f"issuer={agents} bot", f"issuer={idp} helper")


def test_a_delegation_never_outlives_its_limits() -> None:
    assert delegate(ANA, lifetime=60).not_after == NOW + 60
    assert delegate(ANA, lifetime=99_999).not_after == NOW + LONGEST
    assert delegate(replace(ANA, expires_at=NOW + 5), lifetime=60).not_after == NOW + 5


def test_delegating_keeps_the_origin_of_authority() -> None:
    caller = replace(ANA, trust="untrusted", groups=frozenset({"guests"}), session="s-1", auth_time=NOW - 9, human=True)
    again = verify_delegate(
        delegate(verify_delegate(delegate(caller), caller), 2), verify_delegate(delegate(caller), caller)
    )
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
    DelegationRequest,
    agent=st.sampled_from(["bot", "worker", "did:key:z6Mk"]),
    proven_by=st.sampled_from(["", "https://agents.example"]),
    scopes=st.none() | scopes,
    tools=st.none() | tools,
    ceiling=st.none() | st.sampled_from(EFFECTS),
    task=st.none() | st.sampled_from(["t-1", "t-2"]),
    lifetime=st.none() | st.integers(-5, 10_000),
)


def can_call(caller: Caller, tool: str, version: str) -> bool:
    """Tell whether a caller may call this version of a tool."""
    listed = caller.capabilities
    return listed is None or any(each.tool == tool and is_in_range(each.versions, version) for each in listed)


def allowed_effects(caller: Caller) -> set[Effects]:
    return set(EFFECTS if caller.ceiling is None else EFFECTS[: EFFECTS.index(caller.ceiling) + 1])


@given(first=callers, chain=st.lists(wishes, min_size=1, max_size=10))
def test_authority_only_shrinks_over_any_chain(first: Caller, chain: list[DelegationRequest]) -> None:
    holder = first
    for number, asked in enumerate(chain):
        try:
            made = derive_delegation(
                holder,
                asked,
                id=f"00000000-0000-7000-8000-{number:012}",
                now=NOW,
                max_lifetime=LONGEST,
                is_in_range=is_in_range,
            )
        except ExchangeRefused:
            continue
        lent = verify_delegate(made, holder)
        assert lent.scopes <= holder.scopes
        assert all(
            can_call(holder, tool, version) for tool in TOOLS for version in VERSIONS if can_call(lent, tool, version)
        )
        assert allowed_effects(lent) <= allowed_effects(holder)
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


@given(caller=callers, asked=wishes)
def test_a_subset_of_authority_is_never_refused(caller: Caller, asked: DelegationRequest) -> None:
    """The converse: a request for the caller's own authority, or less, is granted."""
    caller = replace(caller, expires_at=NOW + 100)
    within = DelegationRequest(
        agent="bot", scopes=None if asked.scopes is None else asked.scopes & caller.scopes, tools=caller.capabilities,
        ceiling=caller.ceiling, task=caller.task, lifetime=50,
    )  # fmt: skip
    made = derive_delegation(
        caller,
        within,
        id="00000000-0000-7000-8000-000000000000",
        now=NOW,
        max_lifetime=LONGEST,
        is_in_range=is_in_range,
    )
    assert made.not_after == NOW + 50


def test_a_delegation_is_limited_by_its_issuers_current_trust() -> None:
    lent = verify_delegate(delegate(replace(ANA, trust="trusted")), replace(ANA, trust="trusted"))
    now = IssuerSettings(issuer=ANA.issuer, audience="a", tenant="acme", trust="untrusted")
    lowered = apply_origin_trust(lent, now)
    assert (lowered.trust, lowered.decision_cache_key == lent.decision_cache_key) == ("untrusted", False)
    assert apply_origin_trust(lent, now.model_copy(update={"trust": "trusted"})) is lent
    assert apply_origin_trust(lowered, now.model_copy(update={"trust": "trusted"})).trust == "untrusted"
    for gone in (None, now.model_copy(update={"tenant": "other"})):
        with pytest.raises(TokenIssuerUntrusted):
            apply_origin_trust(lent, gone)


def test_revoking_a_token_revokes_its_delegations() -> None:
    first = verify_delegate(delegate(ANA), ANA)
    second = verify_delegate(delegate(first, 2, agent="helper"), first)
    for revoked in (ANA.token_id, first.token_id, second.token_id):
        with pytest.raises(AuthorityRevoked):
            TenantRevocations(tokens=frozenset({revoked})).check(second)
    TenantRevocations(tokens=frozenset({second.token_id, "t-2"})).check(first)
