"""Every field of the contract is obeyed, refused or shown, and a test says which.

`OBSERVATIONS` names the test of each field. The tests of fields that describe a tool to people, and of a few that have
no other, are here.
"""

import operator
import re
import typing
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from deputize import Preview, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.contract import Contract
from deputize.core.telemetry import Metric
from tests.integration.conftest import ADMIN, SCOPES, HttpGateway
from tests.support import shop_tools
from tests.support.gateway_lab import open_lab, parse_body
from tests.support.scripted_tools import Tag

pytestmark = pytest.mark.requirement("CON-2")

TESTS = Path(__file__).parent.parent.parent
HERE = "integration/catalog/test_contract_fields.py"
# Fields that a gateway does not act on: they tell people and other programs what the tool is.
DESCRIPTIONS: dict[str, Any] = {
    "title": "A title",
    "description": "What the tool does, in words.",
    "kind": "retrieval",
    "capability_refs": ["cap:users"],
    "external_mappings": {"other": {"id": 7}},
    "annotations": {"team": "crm"},
    "life.migration_guide_url": "https://docs.example/2",
    "changelog": "Faster.",
    "breaking_changes": True,
    "documentation_url": "https://docs.example",
    "source_code_url": "https://code.example",
    "license": "MIT",
    "author.name": "Ana",
    "author.email": "ana@example.org",
    "author.url": "https://ana.example",
    "native_ids.mcp.server_id": "crm",
    "native_ids.mcp.tool_name": "getUser",
    "native_ids.mcp.method": "tools/call",
    "native_ids.mcp.mcp_protocol_version": "2025-06-18",
    "native_ids.openapi.operation_id": "getUser",
    "native_ids.openapi.method": "GET",
    "native_ids.openapi.path": "/users/{id}",
    "native_ids.openapi.server_url": "https://crm.example",
    "native_ids.openapi.security_scheme_refs": ["key"],
    "native_ids.function_calling.function_name": "get_user",
    "native_ids.function_calling.strict": True,
    "native_ids.function_calling.defer_loading": False,
    "native_ids.a2a.agent_card_url": "https://crm.example/.well-known/agent-card.json",
    "native_ids.a2a.agent_skill_id": "users",
    "native_ids.command.command_id": "crm-get",
    "native_ids.command.argv_ref": "argv:1",
    "native_ids.command.cwd_ref": "cwd:1",
    "native_ids.command.env_policy_ref": "env:1",
    "native_ids.command.sandbox_ref": "sandbox:1",
    "native_ids.browser.action_id": "open-user",
}
_ADMISSION, _CONTRACT = "unit/catalog/test_registration_rules.py", "unit/core/contract/test_contract.py"
_COMPILED, _REST = "unit/catalog/test_compiled_tool.py", "integration/interfaces/rest/admin/test_tools.py"
_SERVICES = "integration/operations/servers/test_services.py"
_GRPC_SERVICES = "integration/operations/servers/test_grpc_services.py"
_ENCODING = "unit/execute/drivers/test_http_encoding.py"
_COMMANDS, _COMMAND_RULES = (
    "integration/execute/test_commands.py",
    "unit/catalog/importers/test_command_manifest.py",
)
_UNENFORCED = "unit/core/contract/test_unenforced_fields.py::test_each_field_is_named_also_after_it_was_stored"
_FAILURES, _CHECKS = "integration/lifecycle/test_declared_failures.py", "integration/lifecycle/test_tool_checks.py"
_PREVIEWS, _RETRY = "integration/lifecycle/preview/test_preview_safety.py", "unit/execute/test_retry.py"
_CIRCUIT = "unit/execute/circuits/test_circuit.py"
_FLOW = "integration/lifecycle/durable/test_flow_run.py"
_COMPENSATION = "integration/lifecycle/durable/test_flow_compensation.py"
_CACHE = "integration/lifecycle/test_cached_reads.py"
_BULKHEADS, _RATES = "unit/execute/test_bulkheads.py", "unit/execute/test_service_rates.py"
_JOURNAL = "integration/lifecycle/recording/test_journal.py"
_BATCHES = "integration/operations/calls/test_call_batches.py"
_CHECKPOINTS = "integration/runs/test_checkpoint_writer.py"
_PROMISES = "unit/catalog/test_promise_rules.py"
_SEARCH = "unit/catalog/test_search.py"
_OBSERVED = f"{_CONTRACT}::test_nobody_can_declare_a_tool_that_is_not_observed"
_LOADED = f"{_REST}::test_only_functions_that_are_loaded_can_be_registered"
_PREDICATES = f"{_COMPILED}::test_outputs_and_predicates_are_judged"
_RESOURCES = f"{_COMPILED}::test_what_a_call_may_change_is_filled_from_its_arguments"
_TIMEOUT = f"{_CONTRACT}::test_a_tools_own_limits_only_tighten_its_class"
_BACKOFF = f"{_RETRY}::test_a_pause_is_anywhere_between_nothing_and_the_exponential_step"
_BROKER = "integration/lifecycle/credentials/test_broker.py"
_NAMES = f"{_CONTRACT}::test_names_that_could_not_be_told_apart_outward_are_refused"
_DEPRECATION = "integration/operations/admin/test_commands.py::test_a_deprecated_version_is_called_with_a_warning"

OBSERVATIONS: dict[str, str] = {
    **dict.fromkeys(DESCRIPTIONS, f"{HERE}::test_what_describes_a_tool_is_shown"),
    "namespace": _NAMES,
    "name": _NAMES,
    "version": f"{_REST}::test_a_tool_is_registered_once_and_versions_stand_side_by_side",
    "handler.driver": _LOADED,
    "handler.target": _LOADED,
    "handler.preview": f"{_ADMISSION}::test_each_condition_is_judged",
    **dict.fromkeys(
        (
            "handler.request.method", "handler.request.path", "handler.request.parameters.argument",
            "handler.request.parameters.name", "handler.request.parameters.place", "handler.request.credential.place",
            "handler.request.response_headers",
        ),
        f"{_SERVICES}::test_a_read_becomes_the_request_that_the_document_describes",
    ),
    "handler.request.response_fields": f"{_SERVICES}::test_only_the_named_fields_of_a_response_are_kept",
    "handler.request.messages": f"{_GRPC_SERVICES}::test_a_read_and_a_write_reach_the_service",
    "handler.request.parameters.style": f"{_ENCODING}::test_queries_are_written_in_the_style_of_the_parameter",
    "handler.request.parameters.explode": f"{_ENCODING}::test_queries_are_written_in_the_style_of_the_parameter",
    "handler.request.body": f"{_ENCODING}::test_bodies_are_written_as_their_media_type_says",
    "handler.request.credential.name": "unit/execute/drivers/test_http.py::"
    "test_the_credential_goes_where_the_security_scheme_says",
    **dict.fromkeys(
        (f"handler.request.further_credentials.{field}" for field in ("place", "name", "secret")),
        f"{_SERVICES}::test_keys_that_are_needed_together_are_sent_together_and_kept_out_of_results",
    ),
    "handler.request.idempotency_header": f"{_SERVICES}::"
    "test_a_repeated_write_is_sent_once_and_its_key_is_handed_on",
    **dict.fromkeys(
        (f"handler.command.{field}" for field in ("program", "arguments", "stdin", "environment")),
        f"{_COMMANDS}::test_a_command_gets_its_words_its_input_and_nothing_else",
    ),
    "handler.command.sha256": f"{_COMMANDS}::test_a_changed_program_is_not_run",
    **dict.fromkeys(
        ("handler.command.folders.path", "handler.command.folders.write", "handler.command.working_folder"),
        f"{_COMMANDS}::test_folders_are_read_and_only_written_if_the_manifest_says_so",
    ),
    "handler.command.output": f"{_COMMANDS}::test_output_that_is_declared_as_json_is_parsed",
    "handler.command.output_bytes": f"{_COMMANDS}::test_a_program_that_writes_more_than_declared_is_ended",
    "handler.command.exit_codes": f"{_COMMANDS}::test_exit_codes_mean_what_the_manifest_says",
    "handler.command.files.folder": f"{_COMMANDS}::test_files_that_a_program_leaves_are_part_of_the_result",
    **dict.fromkeys(
        ("handler.command.files.count", "handler.command.files.bytes"),
        f"{_COMMANDS}::test_a_program_that_leaves_too_much_has_no_result",
    ),
    "handler.pin": "integration/execute/upstreams/test_mcp_driver.py::"
    "test_a_changed_tool_is_held_and_a_rule_lets_it_read_or_also_write",
    "input_schema": f"{_COMPILED}::test_every_error_says_where_and_what_would_do",
    "output_schema": _PREDICATES,
    "error_schema": f"{_FAILURES}::test_an_error_that_is_not_declared_keeps_its_kind_and_loses_its_text",
    "examples": f"{_REST}::test_a_tool_shows_what_is_needed_to_call_it_and_not_where_it_runs",
    "predicates.name": _PREDICATES,
    "predicates.description": _PREDICATES,
    "predicates.holds": _PREDICATES,
    "reads_state": "integration/lifecycle/test_state_check.py::"
    "test_a_read_that_changes_something_is_disabled_at_its_first_call",
    "rolls_back": "integration/lifecycle/test_undo_effect.py::test_a_rejected_result_takes_its_effect_back",
    "predicates.compare": f"{_COMPILED}::test_a_predicate_compares_what_was_asked_with_what_came_back",
    "predicates.severity": "integration/lifecycle/test_tool_checks.py::test_a_warning_lets_the_result_pass",
    "behaviours": f"{_PROMISES}::test_a_promise_that_contradicts_the_contract_is_refused",
    "open_world": "unit/interfaces/mcp/tools/test_tool_definitions.py::"
    "test_only_a_tool_that_says_so_is_closed_to_the_world",
    "authority_rank": "integration/lifecycle/consistency/test_resolution.py::"
    "test_the_source_with_the_highest_rank_is_believed",
    "requires_user_interaction": "integration/lifecycle/approval/test_user_interaction.py::"
    "test_a_call_waits_for_a_person_unless_a_person_makes_it",
    "effects": f"{_CONTRACT}::test_effects_map_to_the_mutation_classes_and_have_no_default",
    "resources.resource": _RESOURCES,
    "resources.op": _RESOURCES,
    "resources.scope": _RESOURCES,
    "undo": f"{_ADMISSION}::test_an_undo_must_be_a_tool_that_exists",
    "status": f"{_ADMISSION}::test_a_status_must_be_a_read_that_takes_a_key",
    "preview": "integration/lifecycle/preview/test_preview.py::test_a_dry_run_shows_what_would_change_and_does_nothing",
    "preview_rules.fresh_seconds": f"{HERE}::test_a_preview_says_how_long_it_stays_valid",
    "preview_rules.volatile": "unit/core/contract/test_preview.py::test_what_is_volatile_may_be_anything",
    "validates": f"{_CHECKS}::test_the_tools_own_judgement_comes_before_the_effect_and_gives_the_key_back",
    "verifies": f"{_CHECKS}::test_a_tool_that_does_not_confirm_its_result_has_acted_all_the_same",
    "auth.scopes": "unit/govern/test_token_authorization.py::test_missing_scopes_are_listed_with_the_rule",
    "auth.permissions": "unit/govern/test_token_authorization.py::test_permissions_are_needed_beside_scopes",
    "auth.credential": f"{_BROKER}::test_without_its_secret_a_mutation_does_nothing_and_gives_its_key_back",
    "auth.secret": f"{_BROKER}::test_without_its_secret_a_mutation_does_nothing_and_gives_its_key_back",
    "auth.audience": "unit/govern/identity/test_minted_tokens.py::test_a_call_token_needs_an_upstream_audience",
    "auth.readonly_secret": f"{_PREVIEWS}::test_a_preview_uses_a_read_only_credential",
    "timeout.timeout_class": _TIMEOUT,
    "timeout.seconds": _TIMEOUT,
    "timeout.max_seconds": _TIMEOUT,
    "idempotency.upstream": "integration/lifecycle/test_unknown_outcomes.py::"
    "test_a_retry_takes_over_where_the_upstream_deduplicates",
    "idempotency.window_seconds": f"{_CONTRACT}::"
    "test_the_window_is_twice_the_timeout_or_an_hour_unless_more_is_asked_for",
    "idempotency.key_argument": "unit/interfaces/mcp/tools/test_tool_definitions.py::"
    "test_only_what_cannot_be_taken_back_asks_the_model_for_a_key",
    **dict.fromkeys(
        ("objectives.p99_seconds", "objectives.availability", "objectives.accuracy", "objectives.cost"),
        "integration/operations/admin/test_service_levels.py::"
        "test_each_objective_is_compared_with_what_was_measured",
    ),
    "observability.trace": _OBSERVED,
    "observability.metrics": _OBSERVED,
    "observability.audit": _OBSERVED,
    "observability.cost_category": f"{HERE}::test_costs_are_counted_by_their_category",
    "observability.cost_per_call": "integration/lifecycle/test_costs.py::test_a_result_says_what_was_charged",
    **dict.fromkeys(
        (
            "observability.prices.currency", "observability.prices.per_compute_second",
            "observability.prices.per_storage_gigabyte", "observability.prices.per_network_gigabyte",
            "observability.prices.per_million_tokens", "observability.prices.per_review",
        ),
        "unit/core/contract/test_prices.py::test_each_price_adds_to_its_component",
    ),
    "retry.max_attempts": f"{_RETRY}::test_the_last_problem_is_raised_once_all_attempts_are_used",
    "retry.base_seconds": _BACKOFF,
    "retry.backoff_multiplier": _BACKOFF,
    "retry.backoff_max_seconds": _BACKOFF,
    "retry.retry_on_status_codes": f"{_FAILURES}::test_a_read_is_retried_on_the_declared_statuses_only",
    "checkpoints.enabled": f"{_CHECKPOINTS}::"
    "test_a_tool_that_saves_without_declaring_it_fails_where_its_author_sees_it",
    "checkpoints.micro_interval_seconds": f"{_CHECKPOINTS}::"
    "test_in_between_only_the_newest_waits_and_is_stored_when_its_time_comes",
    "checkpoints.macro_events": f"{_FAILURES}::test_only_declared_milestones_are_stored",
    "max_inline": "integration/lifecycle/test_result_storage.py::test_a_long_result_is_stored_and_read_in_parts",
    "external_service": "unit/govern/limits/test_rules.py::test_globs_choose_tenants_and_tools",
    "provider": "unit/govern/limits/test_rules.py::test_globs_choose_tenants_and_tools",
    "priority": f"{HERE}::test_a_queued_call_has_the_priority_of_its_contract",
    "aliases": f"{_SEARCH}::test_an_alias_counts_as_the_name",
    "search_hint": f"{_SEARCH}::test_the_best_words_win",
    "tags": "unit/govern/policy/test_default_policies.py::test_the_default_policies_follow_the_documented_function",
    "breaker.failure_threshold": f"{_CIRCUIT}::test_five_failures_in_a_minute_open_it",
    "breaker.window_seconds": f"{_CIRCUIT}::test_failures_outside_the_window_do_not_add_up",
    "breaker.success_threshold": f"{_CIRCUIT}::test_trials_grow_from_a_tenth_with_each_success",
    "breaker.timeout_seconds": f"{_CIRCUIT}::test_no_call_passes_before_its_time",
    "breaker.half_open_max_calls": f"{_CIRCUIT}::test_trials_grow_from_a_tenth_with_each_success",
    "service_limits.max_concurrent": f"{_BULKHEADS}::"
    "test_a_service_has_as_many_slots_as_its_contract_declares_or_the_settings_say",
    "service_limits.max_waiting": f"{_BULKHEADS}::test_a_call_is_refused_when_too_many_wait_and_says_what_to_do",
    "service_limits.max_wait_seconds": f"{_BULKHEADS}::"
    "test_a_call_waits_no_longer_than_its_contract_and_its_deadline_allow",
    "service_limits.max_calls": f"{_RATES}::test_a_service_is_called_as_often_as_declared_and_no_more",
    "service_limits.window_seconds": f"{_RATES}::test_a_call_waits_until_the_window_has_room",
    "freshness.max_age_seconds": f"{_CACHE}::test_an_equal_read_is_answered_with_the_first_result_and_its_age",
    "freshness.shared_by": f"{_CACHE}::test_a_result_that_is_the_same_for_all_serves_other_callers_of_the_tenant",
    **dict.fromkeys(
        ("flow.output", "flow.steps.name", "flow.steps.tool", "flow.steps.version", "flow.steps.bind"),
        f"{_FLOW}::test_the_result_of_a_step_is_the_argument_of_a_later_one",
    ),
    **dict.fromkeys(
        ("flow.steps.when", "flow.steps.steps", "flow.steps.otherwise", "flow.steps.constants"),
        f"{_FLOW}::test_a_condition_chooses_between_steps",
    ),
    **dict.fromkeys(
        ("flow.steps.parallel", "flow.steps.join"),
        f"{_FLOW}::test_the_first_success_counts_and_the_others_are_canceled",
    ),
    "flow.program": (
        "integration/lifecycle/durable/test_programs.py::test_a_program_computes_with_the_results_of_its_calls"
    ),
    "flow.session": "integration/lifecycle/durable/test_code_sessions.py::"
    "test_variables_and_functions_stay_between_cells",
    "flow.on_failure": f"{_COMPENSATION}::test_what_a_flow_keeps_stays_as_it_is",
    "flow.steps.quorum": "unit/runs/test_flow_state.py::test_a_quorum_that_cannot_be_reached_stops_the_rest",
    **dict.fromkeys(
        ("flow.steps.map.over", "flow.steps.map.max_items", "flow.steps.loop.until", "flow.steps.loop.max_rounds"),
        f"{_FLOW}::test_a_list_is_mapped_and_a_call_is_repeated_until_its_condition_holds",
    ),
    **dict.fromkeys(
        (
            "flow.steps.fallback.tool", "flow.steps.fallback.version", "flow.steps.fallback.bind",
            "flow.steps.fallback.constants",
        ),
        f"{_FLOW}::test_a_fallback_is_called_only_if_nothing_happened",
    ),
    "fallback": "integration/lifecycle/test_fallback.py::"
    "test_alternatives_answer_in_their_order_and_the_outcome_says_so",
    "fallback_task": "integration/lifecycle/test_fallback.py::"
    "test_if_none_answers_a_person_is_asked_once_for_each_tool",
    **dict.fromkeys(
        ("network.allowed_domains", "network.allowed_ports", "network.deny_all_egress"),
        "unit/execute/test_network_policy.py::test_a_tool_reaches_the_hosts_and_ports_that_its_contract_declares",
    ),
    **dict.fromkeys(
        ("compensation.compensation_class", "compensation.tool", "compensation.bind", "compensation.within_seconds"),
        f"{_JOURNAL}::test_a_write_leaves_what_it_did_and_its_bound_compensation",
    ),
    "compensation.constants": "unit/core/contract/test_compensation_binding.py::"
    "test_arguments_come_from_pointers_and_constants",
    "concurrency_safe": f"{_BATCHES}::test_calls_that_declare_it_run_beside_each_other_on_one_resource",
    "interrupt": f"{_BATCHES}::test_a_failure_stops_siblings_that_may_be_interrupted_and_waits_for_others",
    "life.deprecation_date": f"{_ADMISSION}::test_dates_of_the_end_must_be_dates_in_order",
    "life.sunset_date": _DEPRECATION,
    "life.replacement": _DEPRECATION,
    **dict.fromkeys(
        (
            "limits.cpu", "limits.memory", "limits.ephemeral_storage", "limits.processes",
            "sandbox.permissions", "alerts.window_seconds", "recipient_argument", "labels.accepts",
            "labels.adds",
        ),
        _UNENFORCED,
    ),
    "sandbox.backend": (
        f"{_COMMANDS}::test_a_command_runs_on_the_stronger_of_what_its_manifest_and_the_settings_demand"
    ),
    "sandbox.tier": f"{_COMMAND_RULES}::test_the_tier_follows_from_what_the_program_is_given",
    **dict.fromkeys(
        ("alerts.error_rate", "alerts.timeout_rate", "alerts.latency_factor", "alerts.pending_approvals"),
        "unit/evidence/test_metrics.py::test_thresholds_that_tools_declare_are_shown_and_the_lowest_counts",
    ),
}  # fmt: skip


def list_fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """List the fields of a model and of the models within it, as dotted paths."""
    for name, field in model.model_fields.items():
        part = find_model(field.annotation)
        if part is None or part is model:
            yield prefix + name
        else:
            yield from list_fields(part, f"{prefix}{name}.")


def find_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in typing.get_args(annotation) if (found := find_model(each)) is not None), None)


def test_every_field_has_a_test_that_observes_its_effect_or_its_refusal() -> None:
    fields = set(list_fields(Contract))
    assert fields - OBSERVATIONS.keys() == set(), "say which test observes these fields"
    assert OBSERVATIONS.keys() - fields == set(), "these are no fields of the contract"


@pytest.mark.parametrize("path", sorted(set(OBSERVATIONS.values())))
def test_the_named_test_exists(path: str) -> None:
    file, _, function = path.partition("::")
    assert re.search(rf"^(async )?def {function}\(", (TESTS / file).read_text(), re.MULTILINE)


def _declare(name: str, **changes: Any) -> dict[str, Any]:
    contract = next(each.contract for each in shop_tools.TOOLS if each.contract.full_name == "shop.hidden_user")
    return {**contract.model_dump(mode="json"), "name": name, **changes}


async def _register(gateway: HttpGateway, manifest: dict[str, Any]) -> None:
    answer = await gateway.post("/v1/tools", manifest, token=gateway.token("root", scopes=(*SCOPES, ADMIN)))
    assert answer.status_code == 201, answer.text


async def test_what_describes_a_tool_is_shown(gateway: HttpGateway) -> None:
    declared: dict[str, Any] = {}
    for path, value in DESCRIPTIONS.items():
        *parts, field = path.split(".")
        reduce(lambda part, name: part.setdefault(name, {}), parts, declared)[field] = value
    await _register(gateway, _declare("described", **declared))
    shown = (await gateway.get("/v1/tools/shop.described")).json()["contract"]
    for path, value in DESCRIPTIONS.items():
        *parts, field = path.split(".")
        assert reduce(operator.getitem, parts, shown)[field] == value, path


async def test_costs_are_counted_by_their_category(gateway: HttpGateway) -> None:
    observability = {"cost_category": "tokens", "cost_per_call": 0.5}
    await _register(gateway, _declare("priced", observability=observability))
    assert (await gateway.call("shop.priced", {"id": 1})).status_code == 200
    metrics = (await gateway.http.get(f"{gateway.metrics_url}/metrics")).text
    (line,) = [each for each in metrics.splitlines() if each.startswith(Metric.COST) and "shop.priced" in each]
    assert 'category="token"' in line
    assert line.endswith(" 0.5")


async def test_a_queued_call_has_the_priority_of_its_contract(gateway: HttpGateway, module_database: str) -> None:
    await _register(gateway, _declare("urgent", priority=2))
    answer = await gateway.call("shop.urgent", {"id": 1}, mode="async")
    assert answer.status_code == 202, answer.text
    db = await asyncpg.connect(module_database)
    try:
        call_id = answer.json()["call_id"]
        assert await db.fetchval("select priority from deputize.runs where id = $1", call_id) == 2
    finally:
        await db.close()


@tool(
    effects="destructive", namespace="lab", resources=["delete lab.notes/{tag}"], preview=lambda tag: Preview(),
    preview_fresh_seconds=60, scopes=["lab:write"],
)  # fmt: skip
async def drop(tag: Tag) -> str:
    """Drop a note for good."""
    return tag


async def test_a_preview_says_how_long_it_stays_valid(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path, tools=[getattr(drop, ATTRIBUTE)]) as lab:
        shown = parse_body(await lab.call("drop", "fresh", dry_run=True))["preview"]
    assert (shown["by"], shown["fresh_seconds"]) == ("tool", 60)
