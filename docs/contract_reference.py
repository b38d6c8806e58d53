"""Render the page about the contract from its model; a field without a meaning fails here."""

import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from deputize.core.contract.contract import Contract
from deputize.core.contract.unenforced_fields import RESERVED_FIELDS

INTRODUCTION = (
    "Everything that one version of a tool declares. A manifest has these fields by these names; `@tool` takes those "
    "of `auth` and `handler` from its own arguments and from the function. Fields that came after the first release "
    "are not part of the digest while they are unset. *Reserved* fields are checked and kept, and nothing enforces "
    "them yet: a tool that sets one answers `requires-setup` and names the field."
)
# Whose meanings say for which tools they are enforced.
_PARTLY_ENFORCED: Final = ("limits", "sandbox")
_RESERVED: Final = frozenset(RESERVED_FIELDS).difference(_PARTLY_ENFORCED)
# What each field means, and its rule where it has one beside its type.
_MEANINGS: Mapping[str, str] = {
    "namespace": "The first half of the tool's name, in lower-case words joined by underscores.",
    "name": "The second half of its name; both with two underscores between them have at most 64 characters.",
    "version": "Its number, as Semantic Versioning writes it. It must announce what changed for callers.",
    "title": "A name for people.",
    "description": "What the tool does, for models and search.",
    "kind": "The kind of tool; policies read it.",
    "handler.driver": "`python`: a function of the project; `mcp`: a tool of a server; `http`: an operation of a "
    "service; `command`: a program in a sandbox; `none`: declared, and connected to no code yet, so that it requires "
    "setup.",
    "handler.target": "For `python` the file and function, as in `tools.crm:get_user`; for `mcp` the server and tool; "
    "for `http` and `command` the service and operation.",
    "handler.preview": "The function that previews a call, if the target brings none.",
    "handler.request.method": "Its HTTP method.",
    "handler.request.path": "Its path below the URL of the service, with `{name}` for each parameter in it.",
    "handler.request.parameters.argument": "The argument that a parameter takes its value from.",
    "handler.request.parameters.name": "The name of the parameter in the request.",
    "handler.request.parameters.place": "Where it goes.",
    "handler.request.parameters.style": "How lists and objects are written there, as in OpenAPI.",
    "handler.request.parameters.explode": "Whether each item of a list or object is written separately.",
    "handler.request.body": "The media type of the argument `body`; none if the request has no body.",
    "handler.request.messages": "The definitions of a gRPC method's messages: a descriptor set in base64.",
    "handler.request.credential.place": "Where the credential goes: `bearer`, `basic`, or a header, query parameter or "
    "cookie.",
    "handler.request.credential.name": "The name of that header, query parameter or cookie.",
    "handler.request.further_credentials.place": "Where a secret goes that the service needs beside the credential.",
    "handler.request.further_credentials.name": "The name of that header, query parameter or cookie.",
    "handler.request.further_credentials.secret": "The name of the tenant's secret.",
    "handler.request.idempotency_header": "The header that takes the key of the call.",
    "handler.request.response_headers": "Headers of the response that are part of the result.",
    "handler.request.response_fields": "Fields of a JSON body that are kept: JSON pointers, with `*` for each item of "
    "a list. None keeps all of it.",
    "handler.command.program": "The path of the program of a command.",
    "handler.command.sha256": "The SHA-256 of its file. A file with another digest is not run.",
    "handler.command.arguments": "Its arguments. `{name}` at the end of one stands for an argument of the tool.",
    "handler.command.stdin": "The argument of the tool that the program reads as its input.",
    "handler.command.environment": "Variables of its environment, beside `PATH`, `HOME` and `LANG`.",
    "handler.command.folders.path": "A folder or file of the host that it sees at its own path.",
    "handler.command.folders.write": "Whether it may change it, which is tier 3.",
    "handler.command.working_folder": "The folder that it starts in. Default: an empty one.",
    "handler.command.output": "`json` if it writes JSON, which is then `output` of the result in place of `stdout`.",
    "handler.command.output_bytes": "Most bytes that it writes to its output and, again, to its errors. "
    "Default: 262144.",
    "handler.command.exit_codes": "What its exit codes mean: `ok`, `failed`, `precondition` or `conflict`. By default, "
    "0 is `ok` and others are `failed`.",
    "handler.command.files.folder": "The folder that it leaves files in, which are `files` of the result.",
    "handler.command.files.count": "Most of these files and the folders that they are in.",
    "handler.command.files.bytes": "Most bytes of all of them.",
    "handler.pin": "The digest of a server's definition that was accepted.",
    "input_schema": "JSON Schema 2020-12 of the arguments; objects are closed, and properties have descriptions.",
    "output_schema": "JSON Schema of the result; a result that does not match fails the call.",
    "error_schema": "JSON Schema of the tool's own errors, as `{message, details}`.",
    "examples": "Arguments of calls that work; each must match the input schema.",
    "predicates.name": "Its name, in the error of a result that fails it.",
    "predicates.description": "What it checks, for people.",
    "predicates.holds": "A JSON Schema that `{input, output}` must match.",
    "predicates.compare": "Comparisons between values of the call.",
    "predicates.severity": "Whether a result that fails it fails the call, or only gets a warning.",
    "effects": "What a call does to data. A write must be reversible by `undo`; undeclared counts as destructive.",
    "resources.resource": "What may be changed, as in `crm.users`.",
    "resources.op": "How.",
    "resources.scope": "Which of them; `{id}` is filled from the arguments, and `*` means any.",
    "undo": "The tool that reverses a call. It must be registered.",
    "status": "The tool that tells, by an idempotency key, what became of a call whose outcome is unknown.",
    "preview": "Whether the tool can say what a call would change. An irreversible tool of the project must.",
    "preview_rules.fresh_seconds": "How long a preview stays valid.",
    "preview_rules.volatile": "Values that may differ between two previews, as pointers.",
    "validates": "Whether the function checks arguments itself before any effect.",
    "verifies": "Whether the function checks its own result.",
    "reads_state": "Whether the function can show the state it changes (`read_state`), so that a call's effect is "
    "compared with what the contract declares.",
    "rolls_back": "Whether the function takes back what a call did whose result was rejected (`rollback`).",
    "behaviours": "Properties that tests can check. `deterministic`: equal arguments give equal results, of a tool "
    "that only reads. `idempotent`: a repeated key has the effect of one call; the upstream must recognize it. "
    "`monotone`: nothing is removed. `conserving`: sums stay the same. `reversible`: `undo` restores the state. One "
    "that contradicts the contract is refused.",
    "flow.session": "Where the input of `code.run` names the session whose variables its program has.",
    "flow.program": "Where the input of `code.run` has the program whose calls are the steps; other tools have none.",
    "flow.output": "Where the result comes from: a pointer, or one for each field. Without it, the last step's result.",
    "flow.on_failure": "What becomes of what was done if the flow fails: `compensate`, the default, takes it back, "
    "newest first; `keep` leaves it.",
    "flow.steps.name": "Its name, which no other step has.",
    "flow.steps.when": "A comparison such as `/steps/order/total <= 100`; the step runs only if it holds.",
    "flow.steps.tool": "The tool that it calls; a flow, too.",
    "flow.steps.version": "Its version or range; without it, the newest.",
    "flow.steps.bind": "Where arguments come from: pointers such as `/input/id` or `/steps/order/id`.",
    "flow.steps.constants": "Arguments with a fixed value.",
    "flow.steps.parallel": "Steps that run beside each other.",
    "flow.steps.join": "How many of them must succeed: `all`, a `quorum`, or the `first`. The rest is canceled.",
    "flow.steps.quorum": "The part of them that must succeed, rounded up.",
    "flow.steps.steps": "Steps that run one after another.",
    "flow.steps.otherwise": "Steps that run if the condition does not hold.",
    "flow.steps.map.over": "The list; `/item` and `/index` are its elements and their places.",
    "flow.steps.map.max_items": "How many elements it may have.",
    "flow.steps.loop.until": "The comparison that ends it; the step's own result is that of the last round.",
    "flow.steps.loop.max_rounds": "After how many rounds the step fails; `/round` is the number of each.",
    "flow.steps.fallback.tool": "The tool that is called instead.",
    "flow.steps.fallback.version": "Its version or range; without it, the newest.",
    "flow.steps.fallback.bind": "Where its arguments come from.",
    "flow.steps.fallback.constants": "Arguments with a fixed value.",
    "compensation.compensation_class": "`full` restores the state, `semantic` an equivalent one, `partial` leaves "
    "traces; `irreversible`: nothing compensates it, and `tool` stays unset.",
    "compensation.tool": "The tool that compensates a call. It must be registered, and its arguments bound.",
    "compensation.bind": "Where its arguments come from: pointers such as `/result/order_id`, `/arguments/account` "
    "or `/before/address`.",
    "compensation.constants": "Arguments with a fixed value.",
    "compensation.within_seconds": "How long after the call it can be compensated; without it, always.",
    "requires_user_interaction": "Whether a person takes part in each call: what policies permit waits for approval, "
    "unless a person who signed in calls without an agent.",
    "open_world": "False if the tool deals only with what is known beforehand. Unset counts as true, for policies and "
    "as `openWorldHint` of MCP. A web search or a browser action cannot be false.",
    "recipient_argument": "The argument that names who gets a message.",
    "labels.accepts": "Labels that arguments may carry; unset: every label.",
    "labels.adds": "Labels that results get.",
    "auth.scopes": "Scopes that a caller's token needs. A tool that changes data needs one, or a permission.",
    "auth.permissions": "Scopes with a kind, as in `filesystem:read:/data`; required like scopes, and policies read "
    "them.",
    "auth.credential": "What the tool acts with: nothing, a token for its audience on behalf of the user, a secret of "
    "the tenant, the user's linked account, or the gateway's OAuth client.",
    "auth.secret": "For `vault`: the name of the secret.",
    "auth.audience": "For `delegated`: the audience of the token.",
    "auth.readonly_secret": "For `vault`: the secret that the preview uses.",
    "timeout.timeout_class": "0.5 s, 5 s, 300 s, or as long as `seconds` says.",
    "timeout.seconds": "A limit of the tool's own, at most that of its class; an async tool needs one.",
    "timeout.max_seconds": "The most that `seconds` may be.",
    "idempotency.upstream": "What the system behind the tool does with a repeated key: recognizes it, has the same "
    "effect anyway, or cannot.",
    "idempotency.window_seconds": "How long an outcome is replayed; at least an hour and twice the timeout.",
    "idempotency.key_argument": "The argument that is the idempotency key.",
    "observability.trace": "Always true.",
    "observability.metrics": "Always true.",
    "observability.audit": "Always true.",
    "observability.cost_category": "What a call's cost is counted as.",
    "observability.cost_per_call": "What a call costs, unless the tool reports it.",
    "observability.prices.currency": "The currency of these prices and of `cost_per_call`, as in `EUR`.",
    "observability.prices.per_compute_second": "What a second in the tool costs.",
    "observability.prices.per_storage_gigabyte": "What 10⁹ bytes cost that the result reports as stored.",
    "observability.prices.per_network_gigabyte": "What 10⁹ bytes cost that are sent: as the result reports, else the "
    "arguments and the result of a remote tool.",
    "observability.prices.per_million_tokens": "What a million tokens cost that the result reports.",
    "observability.prices.per_review": "What each person's decision on an approval request costs.",
    "retry.max_attempts": "How often an attempt is made, of calls that are safe to repeat.",
    "retry.base_seconds": "The first pause.",
    "retry.backoff_multiplier": "How much longer each pause is.",
    "retry.backoff_max_seconds": "The longest pause.",
    "retry.retry_on_status_codes": "HTTP statuses of the tool's own requests that are tried again.",
    "breaker.failure_threshold": "Failures of the external service after which calls to it pause.",
    "breaker.window_seconds": "How long a failure counts.",
    "breaker.success_threshold": "Successful trials after which they go on.",
    "breaker.timeout_seconds": "How long they pause before the first trial.",
    "service_limits.max_concurrent": "Most calls to the external service at once, in each gateway and worker. "
    "Default: `limits.service_calls_at_once`.",
    "service_limits.max_waiting": "Most calls that wait for their turn, in each gateway. "
    "Default: as many as may be made at once.",
    "service_limits.max_wait_seconds": "How long a call waits for its turn, within its deadline. Default: 5.",
    "service_limits.max_calls": "Most calls to the external service in `window_seconds`, retries included.",
    "service_limits.window_seconds": "The time in which at most `max_calls` are made. Default: 60.",
    "breaker.half_open_max_calls": "How many trials may be on their way at once; a tenth of them at first.",
    "limits.cpu": "As in `500m` or `2`. Limits are enforced for commands, and reserved for others.",
    "limits.memory": "As in `512Mi`.",
    "limits.ephemeral_storage": "As in `1Gi`: of `/tmp`.",
    "limits.processes": "Most processes and threads at once. Default: 64 for commands.",
    "network.allowed_domains": "Hosts that the tool may reach, by name or as `*.example.com`; if none is listed, any. "
    "Enforced for commands and for tools of HTTP and gRPC services and of MCP servers with a URL, and reserved for "
    "functions.",
    "network.allowed_ports": "Ports that it may reach.",
    "network.deny_all_egress": "Whether it may reach nothing.",
    "checkpoints.enabled": "Whether the tool saves its state with `context.save`.",
    "checkpoints.micro_interval_seconds": "How often the newest state is stored.",
    "checkpoints.macro_events": "Milestones whose state is stored at once.",
    "sandbox.tier": "Enforced for commands, and reserved for others. 0 computes, 1 also reads, 2 also reaches the "
    "hosts of `network`, 3 does what `permissions` says "
    "with an approval of each call. A tool that changes data needs 2 or 3.",
    "sandbox.permissions": "What tier 3 may do. Those of a command are its folders and hosts.",
    "sandbox.backend": "The weakest backend that may run it.",
    "freshness.max_age_seconds": "How old a result may be that is given again. Only of a tool that reads.",
    "freshness.shared_by": "Whether one caller's result may be given to others of the tenant.",
    "fallback": "Tools that answer instead while this one is "
    "[not available](../how-to/survive-failing-services.md#alternatives), in their order. Only of a tool that reads; "
    "each takes the same arguments by name.",
    "fallback_task": "What a person is to do when neither the tool nor an alternative answers: it opens a "
    "[task](../how-to/survive-failing-services.md#a-person-at-the-end). Only of a tool that reads.",
    "concurrency_safe": "Whether calls of one batch may run beside each other although they change the same resources.",
    "interrupt": "What the failure of a sibling in a batch with `cancel_siblings` does to a running call: `cancel` "
    "stops it, unless it runs in a thread; `block`, and no value, waits for its end.",
    "max_inline": "The longest result that is given whole, in characters. Longer ones, and those with sensitive "
    "values, are [stored and given as references](../how-to/return-large-results.md).",
    "objectives.p99_seconds": "The latency that 99 of 100 calls keep; at most the timeout. "
    "`deputize tool service-levels` compares it with what was measured.",
    "objectives.availability": "The share of calls that succeed, compared likewise.",
    "objectives.accuracy": "The share of results that are correct: compared if predicates or `verify` check them.",
    "objectives.cost": "The most that a call costs, compared likewise; at least `observability.cost_per_call`.",
    "alerts.window_seconds": "The time over which the thresholds are measured. Other values than 900 are reserved.",
    "alerts.error_rate": "The share of failed calls above which ToolDegraded [fires]"
    "(../how-to/monitor-a-gateway.md#load-the-alerts).",
    "alerts.timeout_rate": "The share of calls that time out, likewise: TimeoutClassMismatch.",
    "alerts.latency_factor": "How many times the usual p99 latency: LatencyRegression.",
    "alerts.pending_approvals": "How many calls wait for approval by one group: ToolApprovalBacklog.",
    "authority_rank": "Of two sources that disagree, the higher rank is believed. Policies read 0 if it is unset.",
    "external_service": "The service behind the tool; policies, limits and queues know it by this name.",
    "priority": "Among queued calls; 1 is the most urgent.",
    "aliases": "Other names by which it can be called.",
    "search_hint": "Words that searches match.",
    "tags": "Words that searches and policies match.",
    "capability_refs": "Names of capabilities that it offers.",
    "native_ids.mcp.server_id": "The server. A tool that is called through MCP must be this one.",
    "native_ids.mcp.tool_name": "The tool's name there.",
    "native_ids.mcp.method": "The method, if it is not `tools/call`.",
    "native_ids.mcp.mcp_protocol_version": "The version of MCP.",
    "native_ids.openapi.operation_id": "The operation's id.",
    "native_ids.openapi.method": "Its HTTP method.",
    "native_ids.openapi.path": "Its path.",
    "native_ids.openapi.server_url": "The server.",
    "native_ids.openapi.security_scheme_refs": "Its security schemes.",
    "native_ids.function_calling.function_name": "The function's name in model APIs.",
    "native_ids.function_calling.strict": "Whether its schema is enforced by the model API.",
    "native_ids.function_calling.defer_loading": "Whether it is loaded only when it is found.",
    "native_ids.a2a.agent_card_url": "The card of the agent.",
    "native_ids.a2a.agent_skill_id": "The skill.",
    "native_ids.command.command_id": "The command.",
    "native_ids.command.argv_ref": "A reference to its arguments.",
    "native_ids.command.cwd_ref": "A reference to its folder.",
    "native_ids.command.env_policy_ref": "A reference to the rules for its environment.",
    "native_ids.command.sandbox_ref": "A reference to its sandbox.",
    "native_ids.browser.action_id": "The action.",
    "external_mappings": "What others wrote about the tool, in any form; kept as it is.",
    "annotations": "Anything else, for people and other programs.",
    "life.deprecation_date": "From when on it is deprecated, as in `2030-01-31`.",
    "life.sunset_date": "When it ends; not before the deprecation.",
    "life.migration_guide_url": "How to move on.",
    "life.replacement": "The tool to use instead.",
    "changelog": "What changed in this version.",
    "breaking_changes": "Whether callers of the version before can break; checked from 1.0.0 on.",
    "provider": "Who offers the tool; policies read it.",
    "documentation_url": "Its documentation.",
    "source_code_url": "Its source.",
    "license": "Its licence, as SPDX writes it.",
    "author.name": "Who wrote it.",
    "author.email": "Their address.",
    "author.url": "Their page.",
}


def render_lines() -> Iterator[str]:
    """Render a table of the plain fields and one for each part, and fail if a meaning has no field."""
    unused_paths = set(_MEANINGS)
    schema = Contract.model_json_schema()
    yield from _render_table(Contract, schema, schema, (), unused_paths)
    if unused_paths:
        raise ValueError(
            f"docs/contract_reference.py describes what contracts do not have: {', '.join(sorted(unused_paths))}"
        )


def _render_table(
    model: type[BaseModel],
    schema: Mapping[str, Any],
    root: Mapping[str, Any],
    path: tuple[str, ...],
    unused_paths: set[str],
) -> Iterator[str]:
    found = {name: _find_part(field.annotation) for name, field in model.model_fields.items()}
    # A part inside itself, as steps inside steps, is described once.
    parts = {name: part for name, part in found.items() if part is not None and part is not model}
    plain_names = [name for name in model.model_fields if name not in parts]
    if plain_names:
        yield from _render_head(model, path)
        yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    for name in plain_names:
        field_path = ".".join((*path, name))
        if field_path not in _MEANINGS:
            raise ValueError(f"docs/contract_reference.py has no meaning of the contract's field {field_path}: add one")
        unused_paths.discard(field_path)
        note = "*Reserved.* " if field_path in _RESERVED else ""
        node = schema["properties"][name]
        default = _render_default(node, is_required=name in schema.get("required", ()))
        yield f"| `{name}` | {_render_type(node, root)} | {default} | {note}{_MEANINGS[field_path]} |"
    for name, part in parts.items():
        part_schema = root["$defs"][part.__name__]
        yield from _render_table(part, part_schema, root, (*path, name), unused_paths)


def _render_head(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[str]:
    if path:
        about = " ".join((model.__doc__ or "").split("\n\n")[0].split())
        note = "*Reserved.* " if path[0] in _RESERVED else ""
        yield from ("", f"## {'.'.join(path)}", "", f"{note}{about}")
    else:
        yield from ("", "## At the top")
    yield ""


def _find_part(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((part for each in typing.get_args(annotation) if (part := _find_part(each)) is not None), None)


def _render_default(node: Mapping[str, Any], *, is_required: bool) -> str:
    if is_required:
        return "required"
    value = node.get("default")
    if value is None or value in ("", [], {}):
        return "unset"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _render_type(node: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """Render a JSON Schema in a few words, with its bounds."""
    if "$ref" in node:
        return _render_type(root["$defs"][node["$ref"].rpartition("/")[2]], root)
    if "anyOf" in node:
        return " or ".join(_render_type(each, root) for each in node["anyOf"] if each != {"type": "null"})
    if "const" in node or "enum" in node:
        return ", ".join(f"`{str(each).lower()}`" for each in node.get("enum", [node.get("const")]))
    match node.get("type"):
        case "array":
            inner = _render_type(node.get("items", {}), root)
            return "list" if inner == "any" else f"list of {inner}"
        case "object" | None:
            return "object" if node.get("type") else "any"
        case kind:
            return f"{kind}{_render_bounds(node)}"


def _render_bounds(node: Mapping[str, Any]) -> str:
    low = node.get("minimum", node.get("exclusiveMinimum"))
    high = node.get("maximum")
    if high is not None:
        return f", {'above' if 'exclusiveMinimum' in node else 'from'} {low:g} to {high:,.15g}"
    if "maxLength" in node:
        return f", up to {node['maxLength']} characters"
    return "" if low is None else f", {low:g} or more"
