"""Check that what a contract promises does not contradict the rest of it: behaviours, compensation, service levels.

`registration_rules.py` uses these checks among its eight conditions.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from deputize.catalog.command_rules import check_command
from deputize.catalog.response_schemas import MissingField, narrow_result_schema
from deputize.catalog.schema_rules import NOT_CALLABLE, Reason
from deputize.catalog.schemas import get_properties, resolve_refs
from deputize.core.contract.contract import Contract, Effects, Schema, ToolKind, UpstreamIdempotency
from deputize.core.contract.effects import Compensation
from deputize.core.contract.http_request import (
    HttpRequest,
    is_method_override,
    list_credential_names,
    normalize_parameter_name,
)
from deputize.core.mcp.servers import parse_mcp_target

_OPEN_KINDS: Final = frozenset({ToolKind.WEB_SEARCH, ToolKind.BROWSER_ACTION})
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_MUTATION = "mutation_class_labelled"


def check_promises(contract: Contract) -> Iterator[Reason]:
    """Check the promises of a contract against its own schemas and effects."""
    yield from _check_helpers(contract)
    yield from check_command(contract)
    yield from _check_behaviours(contract)
    yield from _check_compensation(contract)
    yield from _check_data_use(contract)
    yield from _check_service_levels(contract)
    yield from _check_sandbox(contract)
    yield from _check_native_ids(contract)


def check_fallback_tools(contract: Contract, find_contract: Callable[[str], Contract | None]) -> Iterator[Reason]:
    """Check that each alternative exists, only reads, and takes and returns what this tool does, by name and type."""
    for place, name in enumerate(contract.fallback):
        path, tool = f"/fallback/{place}", find_contract(name)
        if tool is None:
            fix = "register it first, or load its function with this one"
            yield _make_reason(_MUTATION, path, f"{name} is not a callable tool", fix)
        elif tool.effects is not Effects.READ:
            yield _make_reason(_MUTATION, path, f"{name} changes data", "name a tool that reads")
        else:
            fix = "name a tool with the same names and types, or change one of them"
            for reason in _compare_properties(contract.input_schema, tool.input_schema):
                yield _make_reason(_MUTATION, path, f"{name} takes other arguments: {reason}", fix)
            for argument in _list_untaken_arguments(contract.input_schema, tool.input_schema):
                yield _make_reason(_MUTATION, path, f"{name} has no argument {argument}", fix)
            for reason in _compare_properties(tool.output_schema, contract.output_schema):
                yield _make_reason(_MUTATION, path, f"{name} returns another result: {reason}", fix)


def _compare_properties(given: Schema, taken: Schema) -> Iterator[str]:
    """Compare what is given with what is taken: all that is required there, and the same types."""
    given_properties, taken_properties = get_properties(given), get_properties(taken)
    given_root, taken_root = resolve_refs(given, given), resolve_refs(taken, taken)
    if given_root.get("type") != taken_root.get("type"):
        yield f"{_name_type(given_root)} is not {_name_type(taken_root)}"
    for name in sorted(set(taken_root.get("required", ())) - set(given_root.get("required", ()))):
        yield f"{name} is required and may be missing"
    for name in sorted(given_properties.keys() & taken_properties.keys()):
        before = resolve_refs(given, given_properties[name])
        after = resolve_refs(taken, taken_properties[name])
        if isinstance(before, dict) and isinstance(after, dict) and before.get("type") != after.get("type"):
            yield f"{name} is {_name_type(before)}, not {_name_type(after)}"


def _list_untaken_arguments(given: Schema, taken: Schema) -> list[str]:
    """List arguments that every call has and that the other tool does not take."""
    required_names = resolve_refs(given, given).get("required", ())
    return sorted({str(each) for each in required_names} - get_properties(taken).keys())


def _name_type(schema: Mapping[str, Any]) -> str:
    return str(schema.get("type", "of any type"))


def check_compensation_tool(contract: Contract, find_contract: Callable[[str], Contract | None]) -> Iterator[Reason]:
    """Check that the tool that compensates this one exists, and that its arguments are bound."""
    compensation = contract.compensation
    if compensation is None or compensation.tool is None:
        return
    is_own = compensation.tool == contract.full_name
    tool = contract if is_own else find_contract(compensation.tool)
    if tool is None:
        fix = "register it first, or load its function with this one"
        yield _make_reason(_MUTATION, "/compensation/tool", f"{compensation.tool} {NOT_CALLABLE}", fix)
        return
    names = {**(compensation.bind or {}), **(compensation.constants or {})}
    required_names = resolve_refs(tool.input_schema, tool.input_schema).get("required")
    for name in (
        sorted({str(each) for each in required_names} - names.keys()) if isinstance(required_names, list) else ()
    ):
        reason = f"does not say where {tool.full_name} gets its argument {name} from"
        yield _make_reason(_MUTATION, "/compensation/bind", reason, f'add it, as in {{"{name}": "/result/{name}"}}')
    for name in sorted(names.keys() - get_properties(tool.input_schema).keys()):
        reason = f"sets {name}, which is not an argument of {tool.full_name}"
        yield _make_reason(_MUTATION, "/compensation/bind", reason, "name an argument of that tool")


def _check_helpers(contract: Contract) -> Iterator[Reason]:
    driver, request = contract.handler.driver, contract.handler.request
    if (driver in ("http", "grpc")) != (request is not None):
        reason = f"is missing, but the driver is {driver}" if request is None else f"is set, but the driver is {driver}"
        fix = "import the service: deputize services import" if request is None else "remove it"
        yield _make_reason("version_registered", "/handler/request", reason, fix)
    if request is not None and (driver == "grpc") != (request.messages is not None):
        reason = "is missing, but the driver is grpc" if driver == "grpc" else f"is set, but the driver is {driver}"
        fix = "import the service: deputize services import" if driver == "grpc" else "remove it"
        yield _make_reason("version_registered", "/handler/request/messages", reason, fix)
    if driver == "http" and request is not None:
        yield from _check_request(contract, request)
    if driver in ("mcp", "http", "grpc", "command"):
        for field in ("validates", "verifies", "reads_state", "rolls_back"):
            if getattr(contract, field):
                reason = "is set, but a tool of another server brings no function of its own for it"
                yield _make_reason(_MUTATION, f"/{field}", reason, "remove it")
    if contract.effects is Effects.READ and contract.rolls_back:
        reason = "is set, but a read has no effect to take back"
        yield _make_reason(_MUTATION, "/rolls_back", reason, "remove rollback=")


def _check_request(contract: Contract, request: HttpRequest) -> Iterator[Reason]:
    """Check that every part of a request is filled from an argument."""
    arguments = get_properties(contract.input_schema)
    missing_names = {each.argument for each in request.parameters} - arguments.keys()
    for name in sorted(missing_names):
        reason = f"takes {name[:120]} from an argument that is not in input_schema"
        yield _make_reason("schemas_valid", "/handler/request/parameters", reason, "declare it there")
    yield from _check_names(request)
    if request.response_fields is not None:
        try:
            narrow_result_schema(contract.output_schema, request.response_fields)
        except MissingField as error:
            reason = f"names {str(error)[:200]}, which output_schema does not declare"
            yield _make_reason("schemas_valid", "/handler/request/response_fields", reason, "declare it, or remove it")
    path_names = {each.name for each in request.parameters if each.place == "path"}
    for name in sorted(set(_PLACEHOLDER.findall(request.path)) - path_names):
        reason = f"has {{{name[:120]}}}, which no parameter fills"
        yield _make_reason("schemas_valid", "/handler/request/path", reason, "add a parameter with this name")


def _check_names(request: HttpRequest) -> Iterator[Reason]:
    """Check that no argument becomes the method of the request, or stands beside a credential in another spelling."""
    for parameter in request.parameters:
        if parameter.place == "path":
            continue
        name, secret_names = parameter.name, list_credential_names(request, parameter.place)
        if is_method_override(name):
            reason = f"has {name[:120]}, by which an argument would make another operation of the request"
            yield _make_reason("version_registered", "/handler/request/parameters", reason, "remove it")
        for each in sorted(secret_names):
            # The credential replaces what has its own name.
            is_replaced = name == each or (parameter.place == "header" and name.lower() == each.lower())
            if not is_replaced and normalize_parameter_name(name) == normalize_parameter_name(each):
                reason = f"has {name[:120]}, which services may take for the credential {each[:120]}"
                yield _make_reason("version_registered", "/handler/request/parameters", reason, "remove it")


def _check_behaviours(contract: Contract) -> Iterator[Reason]:
    is_read = contract.effects is Effects.READ
    deletes = any(each.op == "delete" for each in contract.resources)
    cannot_repeat = not is_read and contract.idempotency.upstream is UpstreamIdempotency.CANNOT
    can_reverse = contract.undo is not None or (
        contract.compensation is not None and contract.compensation.compensation_class == "full"
    )
    contradictions = {
        "deterministic": (not is_read, "the tool changes data", 'remove it, or set effects="read"'),
        "idempotent": (
            cannot_repeat,
            'idempotency says that its upstream cannot recognize a repeat ("cannot")',
            'set idempotency to "idempotent" or "deduplicates", or remove it',
        ),
        "monotone": (is_read or deletes, "the tool only reads" if is_read else "resources names a delete", "remove it"),
        "conserving": (is_read, "the tool only reads", "remove it"),
        "reversible": (
            is_read or not can_reverse,
            "the tool only reads" if is_read else "no tool reverses it",
            "remove it" if is_read else "name undo, or a full compensation, or remove it",
        ),
    }
    for place, behaviour in enumerate(contract.behaviours):
        is_contradiction, why, fix = contradictions[behaviour]
        if is_contradiction:
            reason = f"promises {behaviour}, but {why}"
            yield _make_reason("idempotency_specified", f"/behaviours/{place}", reason, fix)
        if behaviour in contract.behaviours[:place]:
            reason = f"contains {behaviour} twice"
            yield _make_reason("idempotency_specified", f"/behaviours/{place}", reason, "remove one of them")


def _check_compensation(contract: Contract) -> Iterator[Reason]:
    compensation = contract.compensation
    if compensation is None:
        return
    path = "/compensation"
    is_irreversible = compensation.compensation_class == "irreversible"
    if contract.effects is Effects.READ:
        yield _make_reason(_MUTATION, path, "is set, but the tool only reads", "remove it")
    if is_irreversible and contract.effects is Effects.WRITE:
        reason = "says irreversible, but a write must be reversible"
        yield _make_reason(_MUTATION, path, reason, 'name the tool that compensates it, or set effects="destructive"')
    if is_irreversible and compensation.tool is not None:
        yield _make_reason(_MUTATION, f"{path}/tool", "is set, but the class is irreversible", "remove one of them")
    if not is_irreversible and compensation.tool is None:
        reason = f"is missing, but the class is {compensation.compensation_class}"
        yield _make_reason(_MUTATION, f"{path}/tool", reason, "name the tool that compensates it")
    yield from _check_bindings(contract, compensation)


def _check_bindings(contract: Contract, compensation: Compensation) -> Iterator[Reason]:
    """Check that each bound value exists: its first step is an argument, or a property of the result if it has some."""
    properties = {
        "arguments": get_properties(contract.input_schema), "result": get_properties(contract.output_schema),
        "before": {},
    }  # fmt: skip
    if compensation.binds_state and not contract.reads_state:
        reason = "takes values of the state before the call, but the tool brings no read_state"
        yield _make_reason(_MUTATION, "/compensation/bind", reason, "add read_state=, or bind arguments and results")
    for name, pointer in (compensation.bind or {}).items():
        _, source, *steps = pointer.split("/")
        first = steps[0].replace("~1", "/").replace("~0", "~") if steps else None
        is_unknown = first is not None and first not in properties[source]
        if is_unknown and (source == "arguments" or properties[source]):
            reason = f"points to {pointer}, which is not declared"
            fix = "name a property of the input schema (/arguments/…) or of the output schema (/result/…)"
            yield _make_reason(_MUTATION, f"/compensation/bind/{name}", reason, fix)
        if name in (compensation.constants or {}):
            reason = "is bound, and constants sets it too"
            yield _make_reason(_MUTATION, f"/compensation/bind/{name}", reason, "remove one of them")


def _check_data_use(contract: Contract) -> Iterator[Reason]:
    if contract.freshness is not None and contract.effects is not Effects.READ:
        yield _make_reason(_MUTATION, "/freshness", "is set, but the tool changes data", "remove it")
    if contract.fallback and contract.effects is not Effects.READ:
        reason = "is set, but the tool changes data, and an alternative could change it twice"
        yield _make_reason(_MUTATION, "/fallback", reason, "remove it")
    if contract.fallback_task is not None and contract.effects is not Effects.READ:
        reason = "is set, but the tool changes data, and a person could change it twice"
        yield _make_reason(_MUTATION, "/fallback_task", reason, "remove it")
    for place, alternative in enumerate(contract.fallback):
        if alternative == contract.full_name or alternative in contract.fallback[:place]:
            reason = f"names {alternative}, which is this tool or named before"
            yield _make_reason(_MUTATION, f"/fallback/{place}", reason, "remove it")
    if contract.open_world is False and contract.kind in _OPEN_KINDS:
        reason = f"is false, but a tool of kind {contract.kind} reaches things that are not known beforehand"
        yield _make_reason("auth_policy_defined", "/open_world", reason, "remove it, or choose another kind")
    name = contract.recipient_argument
    if name is not None and name not in get_properties(contract.input_schema):
        fix = "name a property of the input schema"
        yield _make_reason("auth_policy_defined", "/recipient_argument", f"{name!r} is not an argument", fix)
    if contract.labels is not None and contract.labels.accepts is None and not contract.labels.adds:
        yield _make_reason("auth_policy_defined", "/labels", "declares no label", "name labels, or remove it")


def _check_service_levels(contract: Contract) -> Iterator[Reason]:
    conjunct, objectives, alerts = "observability_instrumented", contract.objectives, contract.alerts
    if objectives is not None and not objectives.model_dump():
        yield _make_reason(conjunct, "/objectives", "declares no objective", "set one of its fields, or remove it")
    if objectives is not None and objectives.p99_seconds is not None:
        limit = contract.timeout.effective_seconds
        if objectives.p99_seconds > limit:
            reason = f"{objectives.p99_seconds:g} s is more than the timeout allows ({limit:g} s)"
            fix = "lower it, or choose a longer timeout"
            yield _make_reason("timeout_class_assigned", "/objectives/p99_seconds", reason, fix)
    if objectives is not None and objectives.cost is not None:
        cost = contract.observability.cost_per_call
        if objectives.cost < cost:
            reason = f"{objectives.cost:g} is less than each call costs ({cost:g})"
            yield _make_reason(conjunct, "/objectives/cost", reason, "raise it to observability.cost_per_call or more")
    if alerts is not None and alerts.model_dump().keys() == {"window_seconds"}:
        yield _make_reason(conjunct, "/alerts", "has no threshold", "set one of its thresholds, or remove it")


def _check_sandbox(contract: Contract) -> Iterator[Reason]:
    sandbox = contract.sandbox
    if sandbox is None:
        return
    if sandbox.tier < 2 and contract.effects is not Effects.READ:
        reason = f"is {sandbox.tier}, in which nothing can be changed, but the tool changes data"
        yield _make_reason(_MUTATION, "/sandbox/tier", reason, 'choose tier 2 or 3, or set effects="read"')
    if sandbox.tier < 2 and contract.network.allowed_domains:
        reason = f"is {sandbox.tier}, which reaches no hosts, but network.allowed_domains names some"
        yield _make_reason("auth_policy_defined", "/sandbox/tier", reason, "choose tier 2 or 3, or remove the hosts")
    if sandbox.tier < 3 and sandbox.permissions:
        reason = f"are set, but only tier 3 has permissions of its own, and this is tier {sandbox.tier}"
        yield _make_reason("auth_policy_defined", "/sandbox/permissions", reason, "choose tier 3, or remove them")


def _check_native_ids(contract: Contract) -> Iterator[Reason]:
    """Check that the ids of an MCP tool name what is called."""
    ids = contract.native_ids.mcp if contract.native_ids is not None else None
    if ids is None or contract.handler.driver != "mcp":
        return
    target = parse_mcp_target(contract.handler.target)
    if (ids.server_id, ids.tool_name) != (target.server, target.name):
        reason = f"names {ids.server_id}/{ids.tool_name}, but the handler calls {contract.handler.target}"
        yield _make_reason("version_registered", "/native_ids/mcp", reason, "name the server and tool of the handler")


def _make_reason(conjunct: str, path: str, reason: str, fix: str) -> Reason:
    return Reason(conjunct=conjunct, path=path, reason=reason, fix=fix)
