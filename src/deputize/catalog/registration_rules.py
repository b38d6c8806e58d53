"""Decide whether a contract may be registered: check eight conditions and report every reason at once.

`operations/admin/commands.py` calls this before it registers a contract. Nothing here reads the database: lookups of
names already in use are passed in as functions, so that they can run under the registry's lock.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import date

from deputize.catalog import versions
from deputize.catalog.flow_rules import check_flow, check_flow_tools
from deputize.catalog.policy_facts import FactLookup, find_mark_faults, find_no_fact
from deputize.catalog.predicates import check_predicate
from deputize.catalog.promise_rules import check_compensation_tool, check_fallback_tools, check_promises
from deputize.catalog.schema_cost import measure_schema
from deputize.catalog.schema_errors import find_errors
from deputize.catalog.schema_rules import (
    NOT_CALLABLE,
    Reason,
    check_descriptions,
    check_input_schema,
    check_schema,
    check_structure,
)
from deputize.catalog.schemas import (
    HIDDEN_SENSITIVITIES,
    BadSchema,
    compile_schema,
    get_properties,
    resolve_refs,
    strip_internal,
)
from deputize.core.canonical import canonicalize
from deputize.core.contract.contract import Contract, Effects, TimeoutClass
from deputize.core.contract.names import to_outward_name
from deputize.core.contract.publication import NO_DESCRIPTION, has_placeholder
from deputize.core.errors import ToolNotAdmitted

# Return the full name of the tool that owns a name or alias; None if the name is free.
OwnerLookup = Callable[[str], str | None]
# Return the contract that a call by this name uses now; None if there is none.
ContractLookup = Callable[[str], Contract | None]

LONGEST_OUTWARD = 64
LARGEST_CONTRACT = 262_144
_MAX_REASONS = 100
_MAX_EXAMPLE_ERRORS = 3
_OUTWARD = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Drivers of the operator's own functions: their authors can add a description, an undo tool or a preview.
_LOCAL_DRIVERS = frozenset({"python"})
_ARGUMENT = re.compile(r"\{([^{}]*)\}")


def find_no_owner(name: str) -> None:
    """Return None for every name, as an empty registry does."""


def admit_contract(
    contract: Contract,
    *,
    find_owner: OwnerLookup = find_no_owner,
    find_fact: FactLookup = find_no_fact,
    find_contract: ContractLookup | None = None,
    admits_drafts: bool = False,
) -> None:
    """Raise `ToolNotAdmitted` with every reason if the contract breaks a condition.

    `admits_drafts` is for a development gateway: there, what its author has not written yet is no reason.
    """
    reasons = list(collect_faults(contract, find_owner=find_owner, find_fact=find_fact, find_contract=find_contract))
    reasons += [] if admits_drafts else collect_gaps(contract)
    if reasons:
        raise build_refusal(contract.full_name, contract.version, reasons)


def check_conflicts(
    contract: Contract, *, find_owner: OwnerLookup, find_fact: FactLookup, find_contract: ContractLookup
) -> None:
    """Raise `ToolNotAdmitted` if an admitted contract conflicts with tools registered since.

    Checks only names, facts and the tools that it names, so that it is fast enough to run under the registry's lock.
    """
    reasons = [*_check_version(contract, find_owner), *_check_auth(contract, find_fact)]
    reasons += _check_undo_tool(contract, find_contract)
    reasons += check_compensation_tool(contract, find_contract)
    reasons += check_fallback_tools(contract, find_contract)
    reasons += check_flow_tools(contract, find_contract)
    if contract.status is not None:
        reasons += _check_status_tool(contract.status, find_contract(contract.status))
    if reasons:
        raise build_refusal(contract.full_name, contract.version, reasons)


def check_test_result(contract: Contract, verdict: str | None, age_seconds: float, max_age_seconds: float) -> None:
    """Raise `ToolNotAdmitted` unless the newest test of the contract passed and is fresh; the verdict is None if it was
    never tested.
    """
    fix = f"run deputize tool test {contract.full_name} --record at a gateway that has it, and send the result here"
    if verdict is None:
        reason = "were not run for this contract, and this gateway requires them"
    elif verdict != "passed":
        what = "failed" if verdict == "failed" else "could not try every case"
        reason, fix = f"{what} for this contract", f"correct the tool or its test plan, then {fix}"
    elif age_seconds > max_age_seconds:
        reason = f"passed {age_seconds / 86_400:.1f} days ago; this gateway allows {max_age_seconds / 86_400:.1f}"
    else:
        return
    refusal = _make_reason("contract_tests_passing", "contract tests", reason, fix)
    raise build_refusal(contract.full_name, contract.version, [refusal])


def build_refusal(name: str, version: str, reasons: list[Reason]) -> ToolNotAdmitted:
    """Build the error: the first reason in its message, and the first hundred in `details.reasons`."""
    first = reasons[0]
    more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    return ToolNotAdmitted(
        f"{name} {version} cannot be registered: {first.path} {first.reason}; {first.fix}{more}",
        details={"reasons": [asdict(reason) for reason in reasons[:_MAX_REASONS]]},
    )


def collect_gaps(contract: Contract) -> Iterator[Reason]:
    """Yield what the author has yet to write: descriptions, an example and, for a draft, what the tool does.

    Every gateway but a development gateway refuses a contract with gaps.
    """
    if contract.is_draft:
        fix = 'declare what it does and a version, as in @tool(effects="read", version="0.1.0")'
        yield _make_reason("version_registered", "/version", f"{contract.version} is the version of a draft", fix)
    if not _is_own_code(contract):
        return
    if contract.description == NO_DESCRIPTION or has_placeholder(contract.description):
        yield _make_reason("schemas_valid", "/description", "is missing", "say what the tool does in one sentence")
    if not any(check_structure("input_schema", contract.input_schema)):
        yield from check_descriptions(contract.input_schema)
    if not contract.examples:
        fix = "add the arguments of one call that works"
        yield _make_reason("contract_tests_passing", "/examples", "is missing", fix)


def collect_faults(
    contract: Contract,
    *,
    find_owner: OwnerLookup,
    find_fact: FactLookup = find_no_fact,
    find_contract: ContractLookup | None = None,
) -> Iterator[Reason]:
    """Yield what no gateway accepts.

    The tools that the contract names are checked only if `find_contract` is given; without a registry they cannot be.
    """
    yield from _check_schemas(contract)
    yield from _check_version(contract, find_owner)
    yield from _check_auth(contract, find_fact)
    yield from _check_timeout(contract)
    yield from _check_idempotency(contract)
    if contract.status is not None and find_contract is not None:
        yield from _check_status_tool(contract.status, find_contract(contract.status))
    if find_contract is not None:
        yield from _check_undo_tool(contract, find_contract)
        yield from check_compensation_tool(contract, find_contract)
        yield from check_fallback_tools(contract, find_contract)
        yield from check_flow_tools(contract, find_contract)
    yield from _check_mutation_class(contract)
    yield from check_promises(contract)
    yield from check_flow(contract)
    yield from _check_observability(contract)
    yield from _check_examples(contract)


def _check_schemas(contract: Contract) -> Iterator[Reason]:
    size = _measure_size(contract)
    if isinstance(size, int) and size > LARGEST_CONTRACT:
        # Nothing else is checked: the checks take time in proportion to the size.
        reason = f"has {size} bytes; the limit is {LARGEST_CONTRACT}"
        yield _make_reason("schemas_valid", "", reason, "shorten descriptions or simplify schemas")
        return
    yield from check_schema("input_schema", contract.input_schema)
    yield from check_schema("output_schema", contract.output_schema)
    yield from check_schema("error_schema", contract.error_schema)
    for place, check in enumerate(contract.predicates):
        yield from check_predicate(place, check, reads_state=contract.reads_state)
    if not any(check_structure("input_schema", contract.input_schema)):
        yield from check_input_schema(contract.input_schema)
    if isinstance(size, Reason):
        yield size


def _measure_size(contract: Contract) -> int | Reason:
    """Measure the contract in bytes; a reason if it has no canonical form."""
    try:
        return len(canonicalize(contract.model_dump(mode="json")))
    except (ValueError, RecursionError) as error:
        fix = "use JSON values only, with little nesting and numbers up to 2^53"
        return _make_reason("schemas_valid", "", f"has no canonical JSON form: {error}", fix)


def _check_version(contract: Contract, find_owner: OwnerLookup) -> Iterator[Reason]:
    conjunct = "version_registered"
    if contract.is_draft and not (contract.requires_user_interaction and contract.effects is Effects.DESTRUCTIVE):
        fix = "write 0.1.0 or more"
        yield _make_reason(conjunct, "/version", f"{contract.version} is for tools that declare no effects", fix)
    try:
        versions.parse_version(contract.version)
    except versions.InvalidVersion as error:
        yield _make_reason(conjunct, "/version", str(error).partition(";")[0], "write it like 1.4.0 or 2.0.0-rc.1")
    names = [("/name", contract.full_name)]
    names += [(f"/aliases/{place}", alias) for place, alias in enumerate(contract.aliases)]
    for path, name in names:
        outward_name = to_outward_name(name)
        if not _OUTWARD.fullmatch(outward_name):
            fix = f"shorten it; model APIs accept at most {LONGEST_OUTWARD} characters"
            yield _make_reason(conjunct, path, f"{outward_name} has {len(outward_name)} characters", fix)
        owner = find_owner(name)
        if owner is not None and owner != contract.full_name:
            yield _make_reason(conjunct, path, f"{name} already belongs to another tool", "choose another name")
    if contract.full_name in contract.aliases:
        yield _make_reason(conjunct, "/aliases", "contains the tool's own name", "remove it")
    yield from _check_dates(contract)


def _check_dates(contract: Contract) -> Iterator[Reason]:
    life = contract.life
    days: list[date] = []
    for name, text in (("deprecation_date", life.deprecation_date), ("sunset_date", life.sunset_date)):
        if text is not None:
            try:
                days.append(date.fromisoformat(text))
            except ValueError:
                yield _make_reason("version_registered", f"/life/{name}", "is not a date", "write it like 2030-01-31")
    if len(days) == 2 and days[0] > days[1]:
        fix = "set it to the deprecation date or later"
        yield _make_reason("version_registered", "/life/sunset_date", "is before the deprecation date", fix)


def _check_auth(contract: Contract, find_fact: FactLookup) -> Iterator[Reason]:
    for path, fault, fix in find_mark_faults(contract, find_fact):
        yield _make_reason("auth_policy_defined", path, fault, fix)
    auth = contract.auth
    if contract.effects is not Effects.READ and not auth.required_scopes:
        fix = f'name a scope that callers need, as in scopes=["{contract.namespace}:write"]'
        yield _make_reason("auth_policy_defined", "/auth", "requires no scope, so any caller could change data", fix)
    for kind, field, value, example in (
        ("vault", "secret", auth.secret, "crm/api-key"),
        ("delegated", "audience", auth.audience, "https://crm.example"),
    ):
        if auth.credential == kind and value is None:
            reason, fix = f'is missing, but credential="{kind}" needs it', f'add it, as in {field}="{example}"'
            yield _make_reason("auth_policy_defined", f"/auth/{field}", reason, fix)
        elif auth.credential != kind and value is not None:
            fix = f'set credential="{kind}", or remove {field}'
            reason = f'is not used with credential="{auth.credential}"'
            yield _make_reason("auth_policy_defined", f"/auth/{field}", reason, fix)
    drivers = {"link": ("mcp", "http"), "client": ("mcp",)}.get(auth.credential)
    if drivers is not None and contract.handler.driver not in drivers:
        fix = 'set credential="vault" or credential="delegated"'
        owners = "MCP servers and HTTP services" if "http" in drivers else "MCP servers"
        reason = f"is {auth.credential}, which only tools of {owners} can use"
        yield _make_reason("auth_policy_defined", "/auth/credential", reason, fix)
    if auth.readonly_secret is not None and (auth.credential != "vault" or not contract.preview):
        fix = 'set credential="vault" and add a preview, or remove readonly_secret'
        yield _make_reason("auth_policy_defined", "/auth/readonly_secret", "is used only by a preview", fix)
    elif auth.readonly_secret is not None and auth.readonly_secret == auth.secret:
        fix = f'name a secret that can only read, as in readonly_secret="{auth.secret}-readonly"'
        yield _make_reason("auth_policy_defined", "/auth/readonly_secret", "is the same secret the tool runs with", fix)


def _check_timeout(contract: Contract) -> Iterator[Reason]:
    conjunct, timeout = "timeout_class_assigned", contract.timeout
    limit = timeout.timeout_class.seconds
    if timeout.seconds is not None and timeout.seconds > limit:
        reason = f"{timeout.seconds:g} s is more than {timeout.timeout_class} allows ({limit:g} s)"
        yield _make_reason(conjunct, "/timeout/seconds", reason, "lower it, or choose a longer timeout class")
    if timeout.timeout_class is TimeoutClass.ASYNC and timeout.seconds is None and timeout.max_seconds is None:
        fix = "set seconds to the longest the tool may run"
        yield _make_reason(conjunct, "/timeout/seconds", "is missing, and the class async has no limit", fix)
    if timeout.seconds and timeout.max_seconds and timeout.seconds > timeout.max_seconds:
        yield _make_reason(conjunct, "/timeout/max_seconds", "is less than seconds", "raise it to seconds or more")


def _check_idempotency(contract: Contract) -> Iterator[Reason]:
    name = contract.idempotency.key_argument
    if name is not None and name not in get_properties(contract.input_schema):
        path = "/idempotency/key_argument"
        yield _make_reason(
            "idempotency_specified", path, f"{name!r} is not an argument", "name a property of the input schema"
        )


def _check_status_tool(name: str, status: Contract | None) -> Iterator[Reason]:
    """Check that the status tool only reads and that the gateway can call it with an idempotency key alone."""
    conjunct, path = "idempotency_specified", "/status"
    if status is None:
        yield _make_reason(conjunct, path, f"{name} {NOT_CALLABLE}", "register it first")
        return
    if status.effects is not Effects.READ:
        yield _make_reason(conjunct, path, f"{name} has side effects", "name a tool that only reads")
    root = resolve_refs(status.input_schema, status.input_schema)
    part = resolve_refs(status.input_schema, get_properties(status.input_schema).get("key"))
    if not isinstance(part, dict) or part.get("type", "string") != "string":
        yield _make_reason(conjunct, path, f"{name} has no argument `key`", "add an argument `key` of type string")
    if set(root.get("required", ())) - {"key"}:
        yield _make_reason(conjunct, path, f"{name} requires more than `key`", "require only `key`")


def _check_undo_tool(contract: Contract, find_contract: ContractLookup) -> Iterator[Reason]:
    """Check that the tool that reverses this one exists; a tool may reverse itself."""
    name = contract.undo
    if name is not None and name != contract.full_name and find_contract(name) is None:
        fix = "register it first, or load its function with this one"
        yield _make_reason("mutation_class_labelled", "/undo", f"{name} {NOT_CALLABLE}", fix)


def _check_mutation_class(contract: Contract) -> Iterator[Reason]:
    conjunct = "mutation_class_labelled"
    if contract.effects is Effects.READ:
        if contract.resources:
            fix = 'remove resources, or set effects="write" or effects="destructive"'
            yield _make_reason(conjunct, "/resources", "names changes, but the tool only reads", fix)
    elif not contract.resources:
        fix = 'name what it may change, as in {"resource": "crm.users", "op": "update", "scope": "{id}"}'
        yield _make_reason(conjunct, "/resources", "is missing", fix)
    if contract.effects is Effects.WRITE and contract.undo is None and _is_own_code(contract):
        fix = 'name the tool that reverses it, or set effects="destructive"'
        yield _make_reason(conjunct, "/undo", "is missing, but a write must be reversible", fix)
    yield from _check_preview(contract)
    properties = get_properties(contract.input_schema)
    for place, effect in enumerate(contract.resources):
        path = f"/resources/{place}/scope"
        for name in _ARGUMENT.findall(effect.scope):
            part = resolve_refs(contract.input_schema, properties.get(name))
            if not isinstance(part, dict):
                fix = "name a property of the input schema"
                yield _make_reason(conjunct, path, f"{{{name}}} is not an argument", fix)
            elif part.get("x-sensitivity") in HIDDEN_SENSITIVITIES:
                fix = "use another argument, or *; scopes are written to the audit log"
                yield _make_reason(conjunct, path, f"{{{name}}} is marked {part['x-sensitivity']}", fix)


def _check_preview(contract: Contract) -> Iterator[Reason]:
    """Require a preview of irreversible tools written for this gateway; other servers' tools cannot provide one."""
    conjunct = "mutation_class_labelled"
    is_irreversible = contract.effects is Effects.DESTRUCTIVE and contract.undo is None
    # Each call of a draft needs a person, who is told that its effects are not declared.
    if is_irreversible and _is_own_code(contract) and not contract.preview and not contract.is_draft:
        fix = "add preview=, a function that returns what it would change (in a manifest: handler.preview), or undo"
        yield _make_reason(conjunct, "/preview", "is missing, but this tool is irreversible", fix)
    if contract.handler.preview is not None and not contract.preview:
        yield _make_reason(
            conjunct, "/handler/preview", "is set, but preview is false", "set preview: true, or remove handler.preview"
        )
    if contract.preview_rules is not None and not contract.preview:
        fix = "set preview: true and provide a preview function, or remove preview_rules"
        yield _make_reason(conjunct, "/preview_rules", "is set, but the tool has no preview", fix)


def _check_observability(contract: Contract) -> Iterator[Reason]:
    observability = contract.observability
    for name, is_enabled in (
        ("trace", observability.trace),
        ("metrics", observability.metrics),
        ("audit", observability.audit),
    ):
        if is_enabled is not True:
            yield _make_reason("observability_instrumented", f"/observability/{name}", "is off", "turn it on")


def _check_examples(contract: Contract) -> Iterator[Reason]:
    conjunct = "contract_tests_passing"
    if not contract.examples:
        return
    schema = strip_internal(contract.input_schema)
    try:
        validator = compile_schema(schema)
    except BadSchema:
        return  # `_check_schemas` reports it
    cost = measure_schema(schema)
    for place, example in enumerate(contract.examples):
        errors = find_errors(validator, example, schema, cost)[:_MAX_EXAMPLE_ERRORS]
        if errors:
            reason = "does not match the input schema: " + ", ".join(
                f"{error['path'] or '/'} {error['message']}" for error in errors
            )
            yield _make_reason(conjunct, f"/examples/{place}", reason, "correct the example or the schema")


def _is_own_code(contract: Contract) -> bool:
    """Tell whether the tool is the operator's own code, which must also have descriptions, undo and preview.

    The code of an MCP server's tool cannot be changed here; what it does is declared by the operator instead.
    """
    return contract.handler.driver in _LOCAL_DRIVERS


def _make_reason(conjunct: str, path: str, reason: str, fix: str) -> Reason:
    return Reason(conjunct=conjunct, path=path, reason=reason, fix=fix)
