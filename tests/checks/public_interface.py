"""Describe everything outsiders depend on: routes, errors, metrics, commands. Prose and component names are left out.

`python -m tests.checks.public_interface` compares the code with `public_interface.json` and lists the differences;
`--write` accepts them. A change to the baseline needs a line in CHANGELOG.md.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from deputize.core import telemetry
from deputize.core.errors import list_problem_types
from deputize.interfaces.cli.main import app
from docs.generate import build_api_document

BASELINE = Path(__file__).with_name("public_interface.json")
# What a schema says to people, or calls its parts; everything else is behaviour.
_PROSE = frozenset({"title", "description", "summary", "examples", "example", "operationId", "tags"})


def describe_public_interface() -> dict[str, Any]:
    """Collect the public interface of the code as it is now."""
    document = build_api_document()
    return {
        "api": _drop_prose({key: document[key] for key in ("paths", "components")}),
        "errors": {problem.spec.slug: _describe_error(problem.spec) for problem in list_problem_types()},
        "metrics": {str(metric): list(telemetry.METRIC_LABELS[metric]) for metric in telemetry.Metric},
        "commands": dict(_describe_commands(typer.main.get_command(app), "deputize")),
    }


def _drop_prose(node: Any) -> Any:
    if isinstance(node, list):
        return [_drop_prose(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        key: {name: _drop_prose(each) for name, each in value.items()} if key == "properties" else _drop_prose(value)
        for key, value in node.items()
        if key == "properties" or key not in _PROSE
    }


def resolve_references(description: dict[str, Any]) -> dict[str, Any]:
    """Replace each reference by what it refers to, so that the names of components do not count."""
    api = description["api"]
    routes = {
        f"{method.upper()} {path}": _resolve(operation, api, ())
        for path, operations in api["paths"].items()
        for method, operation in operations.items()
    }
    return {**description, "api": routes}


def _resolve(node: Any, api: dict[str, Any], above: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_resolve(each, api, above) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" not in node:
        return {key: _resolve(value, api, above) for key, value in node.items()}
    reference = node["$ref"]
    if reference in above:
        return {"recursive": len(above) - above.index(reference)}
    target: Any = api
    for part in reference.removeprefix("#/").split("/"):
        target = target[part]
    return _resolve(target, api, (*above, reference))


def _describe_error(spec: Any) -> dict[str, Any]:
    return {
        "number": spec.e_number,
        "code": str(spec.code),
        "class": spec.error_class,
        "http": spec.http,
        "jsonrpc": spec.jsonrpc_code,
        "grpc": spec.grpc,
        "retryable": spec.retryable,
    }


def _describe_commands(command: Any, path: str) -> Iterator[tuple[str, list[str]]]:
    names = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
    arguments = sum(parameter.param_type_name == "argument" for parameter in command.params)
    yield path, [*sorted(name for name in names if name.startswith("-")), f"{arguments} arguments"]
    for name, each in getattr(command, "commands", {}).items():
        yield from _describe_commands(each, f"{path} {name}")


def list_differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """List where two descriptions differ, one line each."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            where = f"{path} > {key}" if path else str(key)
            if key not in after:
                yield f"{where}: removed"
            elif key not in before:
                yield f"{where}: added"
            else:
                yield from list_differences(before[key], after[key], where)
    elif before != after:
        yield f"{path}: {before!r} became {after!r}"


def compare_with_baseline() -> list[str]:
    """List where the code differs from the baseline that is checked in."""
    before = json.loads(BASELINE.read_text(encoding="utf-8"))
    after = json.loads(json.dumps(describe_public_interface()))
    return sorted(list_differences(resolve_references(before), resolve_references(after)))


def main() -> int:
    """Compare with the baseline, or write it."""
    if "--write" in sys.argv[1:]:
        BASELINE.write_text(json.dumps(describe_public_interface(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    found = compare_with_baseline()
    for line in found:
        print(f"public interface: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
