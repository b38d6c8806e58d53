"""Token authorization: scopes, capability lists, revocations, and hidden tools."""

from collections.abc import Callable
from typing import Any

import pytest

from deputize.core.caller import ADMIN_SCOPE, Caller, Capability, Epochs
from deputize.core.contract.contract import Contract, Effects
from deputize.core.errors import AuthorityRevoked, ScopeMissing, ToolNotFound, Unavailable, VersionNotInCapability
from deputize.govern.identity.revocations import Revocations, TenantRevocations
from deputize.govern.token_authorization import authorize_token, is_tool_visible, require_admin

pytestmark = pytest.mark.requirement("GOV-1")

NOTHING_REVOKED = TenantRevocations()
EPOCHS = Epochs(registry=3, policy=1, revocation=2)


def make_contract(*scopes: str, version: str = "2.1.0") -> Contract:
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


def make_caller(*scopes: str, tools: dict[str, str] | None = None, **more: Any) -> Caller:
    listed = None if tools is None else tuple(Capability(tool=name, versions=v) for name, v in tools.items())
    fields = {"tenant": "acme", "user": "ana", "scopes": frozenset(scopes), "capabilities": listed, **more}
    return Caller(**fields)


def decide_call(
    who: Caller, what: Contract, check_revocation: Callable[[Caller], object] = NOTHING_REVOKED.check
) -> tuple[str, ...]:
    decision = authorize_token(
        who,
        what,
        epochs=EPOCHS,
        check_revoked=check_revocation,
        is_in_range=lambda versions, version: versions == "*" or version.startswith(versions),
    )
    assert decision.epochs == EPOCHS
    return decision.rules


def test_a_caller_with_every_scope_is_allowed_by_a_named_rule() -> None:
    assert decide_call(make_caller("a", "b", "c"), make_contract("a", "b")) == ("token-scopes",)
    assert decide_call(make_caller(), make_contract()) == ("token-scopes",)


def test_missing_scopes_are_listed_with_the_rule() -> None:
    with pytest.raises(ScopeMissing) as refusal:
        decide_call(make_caller("b"), make_contract("a", "b", "c"))
    assert refusal.value.details == {
        "missing_scopes": ["a", "c"],
        "required_scopes": ["a", "b", "c"],
        "rule": "token-scopes",
    }


def test_permissions_are_needed_beside_scopes() -> None:
    contract = make_contract("a").model_copy(
        update={"auth": {"scopes": ["a"], "permissions": ["filesystem:read:/data"]}}
    )
    with pytest.raises(ScopeMissing) as refusal:
        decide_call(make_caller("a"), contract)
    assert refusal.value.details["missing_scopes"] == ["filesystem:read:/data"]
    assert decide_call(make_caller("a", "filesystem:read:/data"), contract) == ("token-scopes",)


def test_a_listed_tool_is_allowed_in_the_versions_listed_and_no_other() -> None:
    assert decide_call(make_caller(tools={"crm.get_user": "2."}), make_contract()) == ("token-scopes", "token-tools")
    with pytest.raises(VersionNotInCapability) as refusal:
        decide_call(make_caller(tools={"crm.get_user": "1."}), make_contract())
    assert refusal.value.details["allowed"] == ["1."]


@pytest.mark.requirement("GOV-3")
def test_a_console_token_never_makes_calls() -> None:
    with pytest.raises(VersionNotInCapability, match="cannot make calls"):
        decide_call(make_caller("crm:read", console=True, only_decides=True), make_contract("crm:read"))
    assert decide_call(make_caller("crm:read", console=True), make_contract("crm:read"))


def test_a_tool_may_be_listed_more_than_once() -> None:
    listed = (Capability(tool="crm.get_user", versions="1."), Capability(tool="crm.get_user", versions="2."))
    assert decide_call(Caller(tenant="acme", user="ana", capabilities=listed), make_contract())


def test_being_listed_does_not_replace_a_scope() -> None:
    with pytest.raises(ScopeMissing):
        decide_call(make_caller(tools={"crm.get_user": "*"}), make_contract("a"))


def test_a_capability_list_hides_what_it_does_not_name() -> None:
    assert is_tool_visible(make_caller(), "crm.get_user")
    assert is_tool_visible(make_caller(tools={"crm.get_user": "1."}), "crm.get_user")
    assert not is_tool_visible(make_caller(tools={"crm.other": "*"}), "crm.get_user")
    assert not is_tool_visible(make_caller(tools={}), "crm.get_user")
    with pytest.raises(ToolNotFound):
        decide_call(make_caller("a", tools={}), make_contract("a"))


@pytest.mark.parametrize(
    "revoked",
    [
        TenantRevocations(tokens=frozenset({"t-1"})),
        TenantRevocations(subjects=frozenset({"ana"})),
        TenantRevocations(subjects=frozenset({"bot"})),
        TenantRevocations(subjects=frozenset({"planner"})),
    ],
)
def test_any_revocation_stops_the_call_first(
    revoked: TenantRevocations,
) -> None:
    who = make_caller(agents=("bot", "planner"), token_id="t-1")
    with pytest.raises(AuthorityRevoked):
        decide_call(who, make_contract("a"), revoked.check)


def test_revocation_kinds_are_separate() -> None:
    revoked = TenantRevocations(tokens=frozenset({"ana"}), subjects=frozenset({"t-1"}))
    decide_call(make_caller(token_id="t-1"), make_contract(), revoked.check)


def test_a_tenant_without_loaded_revocations_is_refused() -> None:
    with pytest.raises(Unavailable):
        Revocations().check(make_caller())


def test_administration_needs_its_scope() -> None:
    require_admin(make_caller(ADMIN_SCOPE))
    with pytest.raises(ScopeMissing) as refusal:
        require_admin(make_caller("deputize:admins", "admin"))
    assert refusal.value.details["missing_scopes"] == [ADMIN_SCOPE]


@pytest.mark.parametrize(("effects", "ceiling"), [("write", "read"), ("destructive", "read"), ("destructive", "write")])
def test_a_token_delegated_for_weaker_effects_is_refused(effects: str, ceiling: str) -> None:
    contract = make_contract("a").model_copy(update={"effects": Effects(effects)})
    with pytest.raises(VersionNotInCapability) as refusal:
        decide_call(make_caller("a", ceiling=Effects(ceiling)), contract)
    assert refusal.value.details["ceiling"] == ceiling
    assert decide_call(make_caller("a", ceiling=Effects(effects)), contract) == ("token-scopes",)
