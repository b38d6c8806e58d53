"""The contract carries everything that is promised of it, and its digest names exactly that."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from deputize.core.contract.contract import (
    LATER_FIELDS,
    Contract,
    Effects,
    LifecycleState,
    MutationClass,
    Timeout,
    TimeoutClass,
)
from deputize.core.contract.names import to_full_name, to_outward_name

FIELDS: dict[str, Any] = {
    "namespace": "crm",
    "name": "get_user",
    "version": "1.2.3",
    "description": "Look up one user by number.",
    "handler": {"target": "tools.crm:get_user"},
    "input_schema": {"type": "object", "additionalProperties": False, "properties": {"id": {"type": "integer"}}},
    "output_schema": {"type": "object"},
    "effects": "read",
    "auth": {"scopes": ["crm:read"]},
    "timeout": {},
    "idempotency": {},
    "observability": {},
}

# What one version of a tool is, and where its contract says so.
WHAT_A_TOOL_IS = {
    "qualified name": "namespace name",
    "version": "version",
    "input, output and error schemas": "input_schema output_schema error_schema",
    "auth contract": "auth.scopes auth.credential",
    "timeout class": "timeout.timeout_class",
    "idempotency": "idempotency.upstream idempotency.window_seconds idempotency.key_argument",
    "mutation class with its effects": "effects resources",
    "observability contract": "observability.trace observability.metrics observability.audit",
}
# The operating facts of the manifest, by the names they had there.
OPERATING_FACTS = {
    "tool_id": "namespace name",
    "version": "version",
    "name": "title",
    "description": "description",
    "provider": "provider",
    "protocol": "kind handler.driver",
    "parameters": "input_schema",
    "result_schema": "output_schema",
    "required_permissions": "auth.permissions",
    "timeout_default": "timeout.seconds",
    "timeout_max": "timeout.max_seconds",
    "retry_policy": "retry.max_attempts retry.backoff_multiplier retry.backoff_max_seconds retry.retry_on_status_codes",
    "circuit_breaker_config": "breaker.failure_threshold breaker.success_threshold breaker.timeout_seconds "
    "breaker.half_open_max_calls breaker.window_seconds",
    "resource_limits": "limits.cpu limits.memory limits.ephemeral_storage",
    "network_policy": "network.allowed_domains network.allowed_ports network.deny_all_egress",
    "external_service": "external_service",
    "checkpoint_config": "checkpoints.enabled checkpoints.micro_interval_seconds checkpoints.macro_events",
    "lifecycle dates": "life.deprecation_date life.sunset_date life.migration_guide_url life.replacement",
    "priority": "priority",
    "tags": "tags",
    "changelog": "changelog breaking_changes",
    "documentation": "documentation_url source_code_url",
    "license": "license",
    "author": "author.name author.email author.url",
}
_words = st.from_regex(r"[a-z](_?[a-z0-9]){0,12}", fullmatch=True)


def make_contract(**changes: Any) -> Contract:
    return Contract.model_validate({**FIELDS, **changes})


def _has_field(path: str) -> bool:
    model: type[BaseModel] = Contract
    *parts, last = path.split(".")
    for part in parts:
        annotation = model.model_fields[part].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        model = annotation
    return last in model.model_fields


@pytest.mark.requirement("CON-1")
@pytest.mark.parametrize(("fact", "paths"), WHAT_A_TOOL_IS.items())
def test_a_contract_says_what_a_tool_is(fact: str, paths: str) -> None:
    assert all(map(_has_field, paths.split())), fact


@pytest.mark.requirement("CON-2")
@pytest.mark.parametrize(("fact", "paths"), OPERATING_FACTS.items())
def test_a_contract_carries_the_operating_facts(fact: str, paths: str) -> None:
    assert all(map(_has_field, paths.split())), fact


@pytest.mark.requirement("CON-1")
@pytest.mark.parametrize(
    "name", ["namespace", "name", "version", "handler", "input_schema", "output_schema", "effects", "auth", "timeout",
             "idempotency", "observability"],
)  # fmt: skip
def test_what_makes_a_tool_cannot_be_left_out(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        Contract.model_validate({key: value for key, value in FIELDS.items() if key != name})


@pytest.mark.requirement("CON-1")
@pytest.mark.parametrize("part", ["trace", "metrics", "audit"])
def test_nobody_can_declare_a_tool_that_is_not_observed(part: str) -> None:
    with pytest.raises(ValidationError):
        make_contract(observability={part: False})


@pytest.mark.parametrize(
    "version", ["1", "1.0", "01.0.0", "1.0.0-", "v1.0.0", "1.0.0\n", "1.0.x", "1.0.0+", "1.0.0-a..b"]
)
def test_what_is_not_semver_is_refused(version: str) -> None:
    with pytest.raises(ValidationError):
        make_contract(version=version)


@pytest.mark.parametrize("version", ["0.0.0", "1.0.0-rc.1", "1.0.0+build.5", "10.20.30-a-b.c+d-e"])
def test_semver_is_accepted(version: str) -> None:
    assert make_contract(version=version).version == version


@pytest.mark.parametrize("name", ["A", "1a", "a-b", "a__b", "_a", "a_", "a.b", "a b", "", "a\n", "é", "a" * 49])
def test_names_that_could_not_be_told_apart_outward_are_refused(name: str) -> None:
    for field in ("namespace", "name"):
        with pytest.raises(ValidationError):
            make_contract(**{field: name})


@pytest.mark.requirement("CON-2")
@pytest.mark.parametrize(
    "change",
    [
        {"retry": {"max_attempts": 0}}, {"retry": {"max_attempts": 11}}, {"retry": {"retry_on_status_codes": [200]}},
        {"breaker": {"failure_threshold": 0}}, {"limits": {"cpu": "lots"}}, {"limits": {"memory": "1GB"}},
        {"network": {"allowed_ports": [0]}}, {"checkpoints": {"micro_interval_seconds": 5}}, {"priority": 11},
        {"timeout": {"seconds": float("inf")}}, {"timeout": {"seconds": 0}}, {"retry": {"base_seconds": float("nan")}},
        {"auth": {"permissions": ["everything"]}}, {"auth": {"scopes": ["two words"]}}, {"colour": "blue"},
        {"timeout": {"class": "slow"}}, {"resources": [{"resource": "user", "op": "read"}]},
    ],
)  # fmt: skip
def test_values_out_of_range_and_fields_nobody_knows_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_contract(**change)


@pytest.mark.requirement("CON-10")
def test_the_lifecycle_has_its_seven_states() -> None:
    assert {state.value for state in LifecycleState} == {
        "draft", "available", "disabled", "requires_setup", "deferred", "deprecated", "retired",
    }  # fmt: skip


def test_effects_map_to_the_mutation_classes_and_have_no_default() -> None:
    assert {effect: effect.mutation_class for effect in Effects} == {
        Effects.READ: MutationClass.READ,
        Effects.WRITE: MutationClass.WRITE_REVERSIBLE,
        Effects.DESTRUCTIVE: MutationClass.WRITE_IRREVERSIBLE,
    }
    assert Contract.model_fields["effects"].is_required()


def test_the_digest_is_stable_across_processes_and_the_order_of_keys() -> None:
    same = make_contract(input_schema=dict(reversed(FIELDS["input_schema"].items())))
    assert same.digest == make_contract().digest
    assert Contract.model_validate(make_contract().model_dump(mode="json")).digest == make_contract().digest


@pytest.mark.parametrize(
    "change",
    [
        {"version": "1.2.4"}, {"description": "Look up one user by name."}, {"effects": "write"}, {"title": "x"},
        {"input_schema": {"type": "object"}}, {"auth": {"scopes": []}}, {"timeout": {"timeout_class": "interactive"}},
        {"idempotency": {"upstream": "deduplicates"}}, {"tags": ["x"]}, {"handler": {"target": "tools.crm:other"}},
        {"annotations": {"a": [1]}}, {"author": {"name": "x"}}, {"predicates": [{"name": "p", "holds": {}}]},
    ],
)  # fmt: skip
def test_the_digest_changes_with_anything_declared(change: dict[str, Any]) -> None:
    assert make_contract(**change).digest != make_contract().digest


def test_a_changed_copy_does_not_keep_the_names_and_digest_of_the_original() -> None:
    original = make_contract()
    before = (original.digest, original.full_name, original.window_seconds, original.mutation_class)
    changed = original.model_copy(update={"name": "put_user", "effects": Effects.WRITE})
    assert changed.full_name == "crm.put_user"
    assert changed.mutation_class is MutationClass.WRITE_REVERSIBLE
    assert changed.digest == make_contract(name="put_user", effects="write").digest
    assert (original.digest, original.full_name, original.window_seconds, original.mutation_class) == before


def test_a_contract_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        make_contract().__setattr__("version", "2.0.0")


@given(_words, _words)
def test_outward_and_inward_are_inverse(namespace: str, name: str) -> None:
    full_name = f"{namespace}.{name}"
    assert to_full_name(to_outward_name(full_name)) == full_name
    assert to_full_name(full_name) == full_name
    assert "." not in to_outward_name(full_name)


@given(st.text(max_size=20) | st.from_regex(r"[a-z_]{1,8}__[a-z_]{1,8}\n?", fullmatch=True))
def test_inward_changes_only_what_is_exactly_an_outward_name(name: str) -> None:
    assert to_full_name(name) == name or to_outward_name(to_full_name(name)) == name


@pytest.mark.requirement("INV-3")
def test_the_timeout_classes_have_their_promised_lengths() -> None:
    assert {each.value: each.seconds for each in TimeoutClass} == {
        "interactive": 0.5, "standard": 5.0, "long-running": 300.0, "async": 86_400.0,
    }  # fmt: skip


@pytest.mark.requirement("INV-3")
@given(st.sampled_from(TimeoutClass), st.none() | st.floats(0.001, 86_400), st.none() | st.floats(0.001, 86_400))
def test_a_tools_own_limits_only_tighten_its_class(
    timeout_class: TimeoutClass, seconds: float | None, max_seconds: float | None
) -> None:
    timeout = Timeout(timeout_class=timeout_class, seconds=seconds, max_seconds=max_seconds)
    limit = timeout_class.seconds
    assert timeout.effective_seconds == min(limit, seconds or limit, max_seconds or limit)


@pytest.mark.requirement("INV-5")
@given(st.sampled_from(TimeoutClass), st.none() | st.floats(0.001, 86_400), st.none() | st.integers(60, 30 * 86_400))
def test_the_window_is_twice_the_timeout_or_an_hour_unless_more_is_asked_for(
    timeout_class: TimeoutClass, seconds: float | None, asked: int | None
) -> None:
    contract = make_contract(
        timeout={"timeout_class": timeout_class, "seconds": seconds}, idempotency={"window_seconds": asked}
    )
    floor = max(2 * contract.timeout.effective_seconds, 3600)
    assert contract.window_seconds == max(asked or 0, int(floor))
    assert contract.window_seconds >= 3600


def test_a_field_that_came_later_changes_no_contract_that_leaves_it_out() -> None:
    """Gateways of two releases share a registry: what one wrote keeps its name in the other, and can be read there."""
    plain = Contract.model_validate(FIELDS)
    assert plain.digest == "sha256:7a979d78fd9d31524d5289c27e0240caa8d160dc5235c5aef50a62a7befa7d7d"
    said = plain.model_dump(mode="json")
    assert "preview_rules" not in said
    assert "readonly_secret" not in said["auth"]
    auth = {"credential": "vault", "secret": "a", "readonly_secret": "b"}
    full = Contract.model_validate({**FIELDS, "preview": True, "preview_rules": {"fresh_seconds": 9}, "auth": auth})
    assert Contract.model_validate(full.model_dump(mode="json")) == full
    assert full.model_dump(mode="json")["preview_rules"] == {"fresh_seconds": 9, "volatile": []}
    assert full.model_dump(mode="json")["auth"]["readonly_secret"] == "b"


REVISION_2: dict[str, Any] = {
    "reads_state": True,
    "rolls_back": True,
    "behaviours": ["idempotent"],
    "compensation": {
        "compensation_class": "semantic", "tool": "crm.cancel", "bind": {"id": "/result/id"},
        "constants": {"why": "saga"}, "within_seconds": 60,
    },
    "requires_user_interaction": True,
    "open_world": False,
    "recipient_argument": "to",
    "labels": {"accepts": ["public"], "adds": ["private"]},
    "sandbox": {"tier": 3, "permissions": ["filesystem:read"]},
    "freshness": {"max_age_seconds": 60, "shared_by": "tenant"},
    "fallback": ["crm.find_user"],
    "fallback_task": "Ask the desk.",
    "flow": {"steps": [{"name": "look", "tool": "crm.find_user", "bind": {"id": "/input/id"}}]},
    "concurrency_safe": True,
    "interrupt": "block",
    "max_inline": 1000,
    "objectives": {"p99_seconds": 0.5, "availability": 0.99, "accuracy": 0.9, "cost": 0.1},
    "alerts": {
        "window_seconds": 60, "error_rate": 0.1, "timeout_rate": 0.2, "latency_factor": 2.0, "pending_approvals": 5,
    },
    "authority_rank": 7,
    "service_limits": {
        "max_concurrent": 5, "max_waiting": 0, "max_wait_seconds": 2.0, "max_calls": 9, "window_seconds": 2.0,
    },
    "native_ids": {
        "mcp": {"server_id": "s", "tool_name": "t", "method": "tools/call", "mcp_protocol_version": "2025-06-18"},
        "openapi": {
            "operation_id": "o", "method": "GET", "path": "/users", "server_url": "https://x.example",
            "security_scheme_refs": ["key"],
        },
        "function_calling": {"function_name": "f", "strict": True, "defer_loading": False},
        "a2a": {"agent_card_url": "https://a.example/card", "agent_skill_id": "s"},
        "command": {
            "command_id": "c", "argv_ref": "a", "cwd_ref": "d", "env_policy_ref": "e", "sandbox_ref": "s",
        },
        "browser": {"action_id": "click"},
    },
}  # fmt: skip


def test_every_later_field_is_serialized_only_if_it_is_set() -> None:
    plain = make_contract()
    assert set(REVISION_2) | {"preview_rules"} == set(LATER_FIELDS)
    for field, value in REVISION_2.items():
        assert field not in plain.model_dump(mode="json")
        contract = make_contract(**{field: value})
        assert contract.digest != plain.digest, field
        assert contract.model_dump(mode="json")[field] == value
        assert Contract.model_validate_json(contract.model_dump_json()) == contract
        unset = Contract.model_fields[field].default
        assert make_contract(**{field: unset}).digest == plain.digest, field


@pytest.mark.parametrize(
    "change",
    [
        {"behaviours": ["fast"]}, {"compensation": {}}, {"compensation": {"compensation_class": "magic"}},
        {"compensation": {"compensation_class": "full", "bind": {"id": "result.id"}}}, {"sandbox": {"tier": 4}},
        {"labels": {"adds": ["Two words"]}}, {"freshness": {}}, {"freshness": {"max_age_seconds": 0}},
        {"interrupt": "ignore"}, {"max_inline": 0}, {"objectives": {"availability": 1.1}},
        {"objectives": {"accuracy": 0}}, {"alerts": {"window_seconds": 1}}, {"authority_rank": 0},
        {"authority_rank": 101}, {"native_ids": {"mcp": {"server_id": "s"}}}, {"native_ids": {"gopher": {}}},
        {"native_ids": {"openapi": {"method": "FETCH", "path": "/"}}}, {"recipient_argument": ""},
    ],
)  # fmt: skip
def test_later_fields_have_their_bounds(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_contract(**change)
