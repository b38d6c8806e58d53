"""What identifies a caller in caches and in stored calls."""

from dataclasses import replace
from typing import Any

import pytest

from deputize.core.caller import Caller, Epochs, compute_decision_cache_key, parse_agents, parse_nearest_agent

pytestmark = pytest.mark.requirement("GOV-2")
CALLER = Caller(
    tenant="acme", user="ana", issuer="https://login.example", agents=("bot",), groups=frozenset({"ops"}),
    scopes=frozenset({"shop:write"}), session="s1", task="t1", trust="trusted", human=False,
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "other"},
        {"user": "bo"},
        {"issuer": "https://other.example"},
        {"agents": ("bot", "helper")},
        {"agents": ()},
        {"groups": frozenset({"ops", "boss"})},
        {"scopes": frozenset({"shop:write", "shop:delete"})},
        {"scopes": frozenset()},
        {"session": None},
        {"session": "s2"},
        {"task": None},
        {"trust": "untrusted"},
        {"human": True},
    ],
)
def test_callers_that_policies_can_tell_apart_share_no_cached_decision(change: dict[str, Any]) -> None:
    assert compute_decision_cache_key(replace(CALLER, **change)) != compute_decision_cache_key(CALLER)


def test_the_order_of_groups_and_scopes_does_not_matter() -> None:
    one = replace(CALLER, groups=frozenset(["a", "b"]), scopes=frozenset(["x", "y"]))
    other = replace(CALLER, groups=frozenset(["b", "a"]), scopes=frozenset(["y", "x"]))
    assert compute_decision_cache_key(one) == compute_decision_cache_key(other)


@pytest.mark.parametrize("kind", ["registry", "policy", "revocation"])
def test_epochs_are_current_only_if_none_of_them_is_older(kind: str) -> None:
    epochs = Epochs(registry=2, policy=2, revocation=2)
    assert epochs.is_at_least(epochs)
    assert not epochs.is_at_least(replace(epochs, **{kind: 3}))
    assert replace(epochs, **{kind: 3}).is_at_least(epochs)


def test_an_agent_made_only_the_calls_of_its_own_chain() -> None:
    person = replace(CALLER, agents=())
    assert CALLER.is_maker_of("ana", CALLER.agent_key)
    lent, lent_again = replace(CALLER, grants=("g2", "g1")), replace(CALLER, grants=("g3", "g1"))
    assert lent.is_maker_of("ana", lent.agent_key)
    assert not lent.is_maker_of("ana", lent_again.agent_key)
    assert not CALLER.is_maker_of("ana", lent.agent_key)
    assert not lent.is_maker_of("ana", CALLER.agent_key)
    assert parse_agents(replace(lent, agents=("bot", "helper")).agent_key) == ("bot", "helper")
    assert parse_nearest_agent(lent.agent_key) == "bot"
    assert not CALLER.is_maker_of("ana", "helper")
    assert not CALLER.is_maker_of("ana", "")
    assert not CALLER.is_maker_of("bo", CALLER.agent_key)
    assert person.is_maker_of("ana", "helper")
