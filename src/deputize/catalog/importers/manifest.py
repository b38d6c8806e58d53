"""Load tools declared in YAML or JSON manifests: one tool per file, or a list under `tools:`, in either form.

Loading a manifest runs no code. Each error names the file, the line, the field and the fix; the API returns the same
reasons, without lines, for a posted contract.
"""

from collections.abc import Mapping
from datetime import date
from typing import Any

import orjson
import yaml
from pydantic import ValidationError

from deputize.catalog.exchange.agent_tool.tool_document import import_tool_document, is_tool_document
from deputize.catalog.importers.agent_tool_manifest import (
    IDENTIFYING_FIELD,
    InvalidStandardManifest,
    is_standard_manifest,
    read_standard_manifest,
)
from deputize.catalog.importers.declaration import (
    WrongDeclaration,
    expand_idempotency,
    expand_resource,
    expand_timeout,
    explain_validation_error,
)
from deputize.catalog.registration_rules import build_refusal
from deputize.catalog.schema_rules import Reason
from deputize.core.contract.contract import Contract, TimeoutClass, ToolKind
from deputize.core.contract.handler import FLOW_DRIVER
from deputize.core.errors import ToolNotAdmitted

# YAML aliases (`*name`) count each time they are used, so that no small file expands into a huge value.
MOST_NODES = 100_000
_MAX_NAME_LENGTH = 100

Steps = tuple[str | int, ...]


def parse_manifest(text: str, *, source: str) -> list[Contract]:
    """Parse the contracts of one manifest, or raise `WrongDeclaration` with a sentence for every error in it."""
    tree, value = _parse_yaml(text, source)
    entries: list[tuple[Steps, Any]] = [((), value)]
    if isinstance(value, dict) and "tools" in value:
        unknown = value.keys() - {"tools"}
        if unknown or not isinstance(value["tools"], list):
            raise WrongDeclaration(
                f"{source}: tools must be a list and the only top-level field; remove the other fields"
            )
        entries = [(("tools", place), entry) for place, entry in enumerate(value["tools"])]
    contracts: list[Contract] = []
    messages: list[str] = []
    for path, entry in entries:
        try:
            contracts.append(parse_contract(entry))
        except ToolNotAdmitted as error:
            messages += [_format_reason(source, tree, path, reason) for reason in error.details["reasons"]]
    if messages:
        raise WrongDeclaration(*messages)
    return contracts


def parse_contract(value: Any) -> Contract:
    """Parse a contract from plain data, expanding short forms, or raise `ToolNotAdmitted` with every reason."""
    if not isinstance(value, dict):
        fix = "write an object with the fields of a contract"
        reason = Reason(conjunct="declaration", path="/", reason="is not an object", fix=fix)
        raise build_refusal("this", "", [reason])
    if "http" in value:
        fix = "import the file, which adds its service to deputize.toml: deputize import FILE --url URL"
        reason = Reason(conjunct="declaration", path="/http", reason="makes this a tool of an HTTP service", fix=fix)
        raise build_refusal(str(value.get("name", "?"))[:_MAX_NAME_LENGTH], "", [reason])
    if is_tool_document(value):
        return import_tool_document(value).contract
    fields = _expand_short_forms(_read_form(value))
    try:
        return Contract.model_validate(fields)
    except ValidationError as error:
        name = f"{fields.get('namespace', '?')}.{fields.get('name', '?')}"[:_MAX_NAME_LENGTH]
        version = str(fields.get("version", ""))[:_MAX_NAME_LENGTH]
        raise build_refusal(name, version, list(explain_validation_error(error))) from error


def _read_form(value: dict[str, Any]) -> dict[str, Any]:
    if not is_standard_manifest(value):
        return value
    try:
        return read_standard_manifest(value)
    except InvalidStandardManifest as error:
        name, version = (str(value.get(each, "?"))[:_MAX_NAME_LENGTH] for each in (IDENTIFYING_FIELD, "version"))
        raise build_refusal(name, version, error.reasons) from error


def _expand_short_forms(value: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"observability": {}, **value}
    name = fields.get("name")
    if "namespace" not in fields and isinstance(name, str) and "." in name:
        fields["namespace"], _, fields["name"] = name.partition(".")
    if "flow" in fields:
        fields = {**_list_flow_fields(str(fields.get("name"))), **fields}
        if isinstance(fields.get("timeout"), int | float):
            fields["timeout"] = {"timeout_class": TimeoutClass.ASYNC, "seconds": fields["timeout"]}
    for key, fill in (("timeout", expand_timeout), ("idempotency", expand_idempotency)):
        if key in fields:
            fields[key] = fill(fields[key])
    handler = fields.get("handler")
    if isinstance(handler, dict) and handler.get("preview") is not None:
        fields.setdefault("preview", True)
    if isinstance(fields.get("resources"), list):
        fields["resources"] = [expand_resource(each) for each in fields["resources"]]
    return fields


def _list_flow_fields(name: str) -> dict[str, Any]:
    """List what follows for a tool from being a flow."""
    return {
        "kind": ToolKind.CUSTOM,
        "handler": {"driver": FLOW_DRIVER, "target": name[:_MAX_NAME_LENGTH] or "flow"},
        "idempotency": "deduplicates",
    }


def _parse_yaml(text: str, source: str) -> tuple[yaml.Node | None, Any]:
    """Parse the value, and the node tree that has the line numbers."""
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if tree is not None:
            _require_small(tree, source)
            _require_unique_keys(tree, source)
        return tree, _parse_value(text)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise WrongDeclaration(f"{source}{line}: this is not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, WrongDeclaration):
            raise
        raise WrongDeclaration(f"{source}: this is not valid YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise WrongDeclaration(f"{source}: it is nested too deep; flatten it") from error


def _parse_value(text: str) -> Any:
    """Parse JSON as JSON first, because YAML reads an escaped surrogate pair as two characters."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _stringify_dates(yaml.safe_load(text))


def _require_small(tree: yaml.Node, source: str) -> None:
    sizes: dict[int, int] = {}

    def measure_size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = MOST_NODES + 1  # a node that is met again before its size is known contains itself
            sizes[id(node)] = 1 + sum(measure_size(child) for child in _list_children(node))
        return sizes[id(node)]

    if measure_size(tree) > MOST_NODES:
        raise WrongDeclaration(f"{source}: its YAML aliases expand to more than {MOST_NODES} nodes; use fewer of them")


def _list_children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _require_unique_keys(node: yaml.Node, source: str) -> None:
    """Reject duplicate keys, of which YAML would silently keep the last."""
    stack, visited_ids = [node], {id(node)}
    while stack:
        node = stack.pop()
        if isinstance(node, yaml.MappingNode):
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            duplicates = {name for name in names if names.count(name) > 1 and name != "<<"}
            if duplicates:
                line = node.start_mark.line + 1
                raise WrongDeclaration(f"{source}:{line}: {min(duplicates)} is written twice; keep one of them")
        fresh = [child for child in _list_children(node) if id(child) not in visited_ids]
        visited_ids.update(map(id, fresh))
        stack += fresh


def _stringify_dates(value: Any) -> Any:
    """Convert dates to strings: YAML parses 2030-01-31 as a date, but contracts are JSON."""
    if isinstance(value, dict):
        return {str(key) if isinstance(key, date) else key: _stringify_dates(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_stringify_dates(each) for each in value]
    return value.isoformat() if isinstance(value, date) else value


def _format_reason(source: str, tree: yaml.Node | None, path: Steps, reason: Mapping[str, str]) -> str:
    steps = [step for step in reason["path"].split("/") if step]
    line = _find_line(tree, [*map(str, path), *steps])
    field = ".".join(steps) or "the tool"
    return f"{source}:{line}: {field} {reason['reason']}; {reason['fix']}"


def _find_line(tree: yaml.Node | None, steps: list[str]) -> int:
    """Find the line of a field, or of the nearest field around it that is in the file."""
    line = 1
    node = tree
    for step in steps:
        if isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == step), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and step.isdigit() and int(step) < len(node.value):
            node = node.value[int(step)]
            line = node.start_mark.line + 1
        else:
            break
    return line
