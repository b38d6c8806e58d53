"""Decisions: scopes, capability lists, revocation, and what a token hides."""

from collections.abc import Callable
from typing import Any

import pytest

from deputize.core.caller import ADMIN_SCOPE, Caller, Capability, Epochs
from deputize.core.contract import Contract
from deputize.core.errors import NotInCapability, Revoked, ScopeMissing, ToolNotFound, Unavailable
from deputize.govern.decide import decide, require_admin, visible
from deputize.govern.identity.revocations import Revocations, TenantRevocations

pytestmark = pytest.mark.requirement("GOV-1")

NOTHING_REVOKED = TenantRevocations()
EPOCHS = Epochs(registry=3, policy=1, revocation=2)


def contract(*scopes: str, version: str = "2.1.0") -> Contract:
    return Contract.model_validate(
        {
            "namespace": "crm",
            "name": "get_user",
            "version": version,
            "description": "Gets one user by its number.",
            "handler": {"target": "crm:get_user"},
            "input_schema": {"type": "object"},
            "output_schema": {"type": "object"},
            "effects": "read",
            "auth": {"scopes": scopes},
            "timeout": {},
            "idempotency": {},
            "observability": {},
        }
    )


def caller(*scopes: str, tools: dict[str, str] | None = None, **more: Any) -> Caller:
    listed = None if tools is None else tuple(Capability(tool=name, versions=v) for name, v in tools.items())
    fields = {"tenant": "acme", "user": "ana", "scopes": frozenset(scopes), "capabilities": listed, **more}
    return Caller(**fields)


def ask(who: Caller, what: Contract, revoked: Callable[[Caller], object] = NOTHING_REVOKED.check) -> tuple[str, ...]:
    decision = decide(
        who,
        what,
        epochs=EPOCHS,
        check_revoked=revoked,
        in_range=lambda versions, version: versions == "*" or version.startswith(versions),
    )
    assert decision.epochs == EPOCHS
    return decision.rules


def test_a_caller_with_every_scope_is_allowed_by_a_named_rule() -> None:
    assert ask(caller("a", "b", "c"), contract("a", "b")) == ("token-scopes",)
    assert ask(caller(), contract()) == ("token-scopes",)


def test_missing_scopes_are_listed_with_the_rule_that_wants_them() -> None:
    with pytest.raises(ScopeMissing) as refusal:
        ask(caller("b"), contract("a", "b", "c"))
    assert refusal.value.details == {
        "missing_scopes": ["a", "c"],
        "required_scopes": ["a", "b", "c"],
        "rule": "token-scopes",
    }


def test_a_listed_tool_is_allowed_in_the_versions_listed_and_no_other() -> None:
    assert ask(caller(tools={"crm.get_user": "2."}), contract()) == ("token-scopes", "token-tools")
    with pytest.raises(NotInCapability) as refusal:
        ask(caller(tools={"crm.get_user": "1."}), contract())
    assert refusal.value.details["allowed"] == ["1."]


@pytest.mark.requirement("GOV-3")
def test_a_token_for_deciding_makes_no_calls_whatever_else_it_has() -> None:
    with pytest.raises(NotInCapability, match="makes no calls"):
        ask(caller("crm:read", console=True, only_decides=True), contract("crm:read"))
    assert ask(caller("crm:read", console=True), contract("crm:read"))


def test_a_tool_may_be_listed_more_than_once() -> None:
    listed = (Capability(tool="crm.get_user", versions="1."), Capability(tool="crm.get_user", versions="2."))
    assert ask(Caller(tenant="acme", user="ana", capabilities=listed), contract())


def test_being_listed_does_not_replace_a_scope() -> None:
    with pytest.raises(ScopeMissing):
        ask(caller(tools={"crm.get_user": "*"}), contract("a"))


def test_a_capability_list_hides_what_it_does_not_name() -> None:
    assert visible(caller(), "crm.get_user")
    assert visible(caller(tools={"crm.get_user": "1."}), "crm.get_user")
    assert not visible(caller(tools={"crm.other": "*"}), "crm.get_user")
    assert not visible(caller(tools={}), "crm.get_user")
    with pytest.raises(ToolNotFound):
        ask(caller("a", tools={}), contract("a"))


@pytest.mark.parametrize(
    "revoked",
    [
        TenantRevocations(tokens=frozenset({"t-1"})),
        TenantRevocations(subjects=frozenset({"ana"})),
        TenantRevocations(subjects=frozenset({"bot"})),
        TenantRevocations(subjects=frozenset({"planner"})),
    ],
)
def test_whatever_of_a_caller_is_revoked_stops_the_call_before_anything_else(
    revoked: TenantRevocations,
) -> None:
    who = caller(agents=("bot", "planner"), token_id="t-1")
    with pytest.raises(Revoked):
        ask(who, contract("a"), revoked.check)


def test_kinds_of_revocation_are_not_mixed_up() -> None:
    revoked = TenantRevocations(tokens=frozenset({"ana"}), subjects=frozenset({"t-1"}))
    ask(caller(token_id="t-1"), contract(), revoked.check)


def test_a_tenant_whose_revocations_were_never_read_is_refused() -> None:
    with pytest.raises(Unavailable):
        Revocations().check(caller())


def test_administration_needs_its_scope() -> None:
    require_admin(caller(ADMIN_SCOPE))
    with pytest.raises(ScopeMissing) as refusal:
        require_admin(caller("deputize:admins", "admin"))
    assert refusal.value.details["missing_scopes"] == [ADMIN_SCOPE]
