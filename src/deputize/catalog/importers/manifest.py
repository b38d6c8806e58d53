"""Tools declared in YAML or JSON: one tool per file, or a list under `tools:`. Reading one runs nothing.

A mistake is told with the file, the line, the field and what to do; the same reasons, without lines, answer a
contract posted to the API.
"""

from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import orjson
import yaml
from pydantic import ValidationError

from deputize.catalog.admission import refusal
from deputize.catalog.importers.declaration import (
    WrongDeclaration,
    idempotency_fields,
    reasons_from,
    resource_fields,
    timeout_fields,
)
from deputize.catalog.importers.files import matching
from deputize.catalog.strictness import Reason
from deputize.core.contract import Contract
from deputize.core.errors import NotAdmitted

# Repeated parts (`*name`) count as often as they are used, so that no small file becomes a huge value.
MOST_NODES = 100_000
_LONGEST_NAME = 100

Steps = tuple[str | int, ...]


def load_manifests(globs: Iterable[str], base: Path) -> list[Contract]:
    """The contracts of every manifest that a pattern names under `base`."""
    base = base.resolve()
    return [
        contract
        for path in matching(globs, base)
        for contract in parse_manifest(path.read_text(encoding="utf-8"), source=str(path.relative_to(base)))
    ]


def parse_manifest(text: str, *, source: str) -> list[Contract]:
    """The contracts of one manifest, or `WrongDeclaration` with a sentence for every mistake in it."""
    tree, value = _read(text, source)
    entries: list[tuple[Steps, Any]] = [((), value)]
    if isinstance(value, dict) and "tools" in value:
        unknown = value.keys() - {"tools"}
        if unknown or not isinstance(value["tools"], list):
            raise WrongDeclaration(f"{source}: beside tools: nothing else may stand, and it must be a list")
        entries = [(("tools", place), entry) for place, entry in enumerate(value["tools"])]
    contracts: list[Contract] = []
    wrong: list[str] = []
    for path, entry in entries:
        try:
            contracts.append(contract_from(entry))
        except NotAdmitted as error:
            wrong += [_sentence(source, tree, path, reason) for reason in error.details["reasons"]]
    if wrong:
        raise WrongDeclaration(*wrong)
    return contracts


def contract_from(value: Any) -> Contract:
    """A contract from plain data with the short forms filled out, or `NotAdmitted` with every reason."""
    if not isinstance(value, dict):
        reason = Reason(conjunct="declaration", path="/", reason="is no tool", fix="write its fields by name")
        raise refusal("this", "", [reason])
    fields = _long_form(value)
    try:
        return Contract.model_validate(fields)
    except ValidationError as error:
        name = f"{fields.get('namespace', '?')}.{fields.get('name', '?')}"[:_LONGEST_NAME]
        version = str(fields.get("version", ""))[:_LONGEST_NAME]
        raise refusal(name, version, list(reasons_from(error))) from error


def _long_form(value: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"observability": {}, **value}
    name = fields.get("name")
    if "namespace" not in fields and isinstance(name, str) and "." in name:
        fields["namespace"], _, fields["name"] = name.partition(".")
    for key, fill in (("timeout", timeout_fields), ("idempotency", idempotency_fields)):
        if key in fields:
            fields[key] = fill(fields[key])
    handler = fields.get("handler")
    if isinstance(handler, dict) and handler.get("preview") is not None:
        fields.setdefault("preview", True)
    if isinstance(fields.get("resources"), list):
        fields["resources"] = [resource_fields(each) for each in fields["resources"]]
    return fields


def _read(text: str, source: str) -> tuple[yaml.Node | None, Any]:
    """The value and, beside it, the tree that knows the lines."""
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if tree is not None:
            _require_small(tree, source)
            _require_unique(tree, source)
        return tree, _value(text)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise WrongDeclaration(f"{source}{line}: this is not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, WrongDeclaration):
            raise
        raise WrongDeclaration(f"{source}: this is not YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise WrongDeclaration(f"{source}: it nests too deep to be read; flatten it") from error


def _value(text: str) -> Any:
    """JSON is read as JSON first: YAML takes the two halves of an escaped emoji for two characters."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _without_dates(yaml.safe_load(text))


def _require_small(tree: yaml.Node, source: str) -> None:
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = MOST_NODES + 1  # met again before it is known, a node contains itself
            sizes[id(node)] = 1 + sum(size(child) for child in _children(node))
        return sizes[id(node)]

    if size(tree) > MOST_NODES:
        raise WrongDeclaration(f"{source}: its repeated parts make it too large; write fewer of them")


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _require_unique(node: yaml.Node, source: str) -> None:
    """YAML itself lets the last of two equal names win in silence."""
    waiting, seen = [node], {id(node)}
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.MappingNode):
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            twice = {name for name in names if names.count(name) > 1 and name != "<<"}
            if twice:
                line = node.start_mark.line + 1
                raise WrongDeclaration(f"{source}:{line}: {min(twice)} is given twice; keep one of them")
        fresh = [child for child in _children(node) if id(child) not in seen]
        seen.update(map(id, fresh))
        waiting += fresh


def _without_dates(value: Any) -> Any:
    """YAML reads 2030-01-31 as a date; contracts are JSON and spell it."""
    if isinstance(value, dict):
        return {str(key) if isinstance(key, date) else key: _without_dates(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_dates(each) for each in value]
    return value.isoformat() if isinstance(value, date) else value


def _sentence(source: str, tree: yaml.Node | None, path: Steps, reason: Mapping[str, str]) -> str:
    steps = [step for step in reason["path"].split("/") if step]
    line = _line(tree, [*map(str, path), *steps])
    field = ".".join(steps) or "the tool"
    return f"{source}:{line}: {field} {reason['reason']}; {reason['fix']}"


def _line(tree: yaml.Node | None, steps: list[str]) -> int:
    """The line of the field, or of the nearest thing around it that is written down."""
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
