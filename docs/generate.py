"""Generate the reference pages from the code, such as settings, errors, routes, commands and the contract.

`python -m docs.generate` fails if a page is out of date; `--write` writes the pages.
"""

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer.main
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from deputize.__main__ import HELP_COLUMNS, HELP_FILE
from deputize.core import telemetry
from deputize.core.errors import Problem, list_problem_types
from deputize.core.settings import Settings
from deputize.interfaces.asgi import build_api
from deputize.interfaces.cli.main import app
from deputize.interfaces.cli.render.output import EXIT_CODES
from deputize.operations.gateway import Gateway
from docs import agent_tool, audit_entries, cedar_schema, contract_reference, promises, scale

FOLDER = Path(__file__).parent / "reference"
_NOTE = "<!-- Written by `python -m docs.generate --write`; change the code it describes. -->"


def render_page(title: str, introduction: str, lines: Iterator[str]) -> str:
    return "\n".join([f"# {title}", "", _NOTE, "", introduction, *lines]) + "\n"


def render_cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _join_choices(choices: Iterable[str]) -> str:
    """Write choices as a sentence does: `a`, `b` or `c`."""
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last


def render_settings_page() -> str:
    about = (
        "Each section is a table of `deputize.toml`. An environment variable overrides the file, and the file "
        "overrides the default: `DEPUTIZE_SERVER__PORT=8080` is `port = 8080` under `[server]`. Lists and tables are "
        "JSON in a variable: `DEPUTIZE_TOOLS__PYTHON='[\"tools/*.py\"]'`."
    )
    return render_page("Settings", about, _render_settings(Settings, ()))


def _render_settings(model: type[BaseModel], path: tuple[str, ...], *, is_list: bool = False) -> Iterator[str]:
    plain = {name: field for name, field in model.model_fields.items() if _find_section(field) is None}
    if plain:
        head = ".".join(path)
        yield from ("", f"## [[{head}]]" if is_list else f"## [{head}]" if path else "## At the top of the file", "")
        if is_list and model.__doc__:
            yield from (" ".join(model.__doc__.split()), "")
        yield from ("| setting | type | default | what it does |", "|---|---|---|---|")
        for name, field in plain.items():
            yield (
                f"| `{name}` | {render_cell(render_type(field.annotation))} | {_render_default(field)} | "
                f"{render_cell(field.description)} |"
            )
    for name, field in model.model_fields.items():
        section = _find_section(field)
        if section is not None:
            yield from _render_settings(section[0], (*path, name), is_list=section[1])


def _find_section(field: FieldInfo) -> tuple[type[BaseModel], bool] | None:
    """Find the table behind a field, and whether there may be several of it."""
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind, False
    inside = [each for each in get_args(kind) if isinstance(each, type) and issubclass(each, BaseModel)]
    # A table that may be missing is no list of tables.
    return (inside[0], type(None) not in get_args(kind)) if inside else None


# The types of TOML, by those of Python.
_TYPE_NAMES = {
    str: "string",
    SecretStr: "string (secret)",
    Path: "path",
    int: "integer",
    float: "number",
    bool: "boolean",
}


def render_type(kind: Any) -> str:
    """Name a type as `deputize.toml` writes its values."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return render_type(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join(render_type(each) for each in arguments if each is not type(None))
    if origin is Literal:
        return _join_choices(f'`"{each}"`' for each in arguments)
    if origin is tuple:
        return f"list of {_render_plural(arguments[0])}"
    if origin is dict:
        return f"table of {_render_plural(arguments[1])}"
    return _TYPE_NAMES[kind]


def _render_plural(kind: Any) -> str:
    name = render_type(kind)
    return name if name.startswith("`") else f"{name}s"


def _render_default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    return "unset" if value is None else f"`{render_value(value)}`"


def render_value(value: Any) -> str:
    """Write a value as TOML and JSON do."""
    match value:
        case bool():
            return str(value).lower()
        case str() | Path():
            return f'"{value}"'
        case tuple() | list():
            return f"[{', '.join(render_value(each) for each in value)}]"
        case dict():
            return f"{{{', '.join(f'{name} = {render_value(each)}' for name, each in value.items())}}}"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def render_errors_page() -> str:
    about = (
        "Every interface reports the same errors. Over HTTP an error is an RFC 9457 problem whose `type` is "
        "`urn:deputize:problem:` and the slug. Agents branch on the code. Retryable means that the same call, with the "
        "same idempotency key, may succeed later."
    )
    return render_page("Errors", about, _render_errors())


def _render_errors() -> Iterator[str]:
    branches: dict[type[Problem], list[type[Problem]]] = {}
    for problem in list_problem_types():
        branches.setdefault(problem.__mro__[1], []).append(problem)
    for branch, problems in branches.items():
        yield from ("", f"## {_name_branch(branch)}", "", _read_summary(branch), "")
        yield from ("| number | slug | what happened | what to do | code | retryable | HTTP | JSON-RPC | gRPC |",)
        yield "|---|---|---|---|---|---|---|---|---|"
        for problem in problems:
            spec = problem.spec
            retry_text = "yes" if spec.retryable else "no"
            yield (
                f"| {spec.e_number} | `{spec.slug}` | {render_cell(spec.title)} | {render_cell(spec.advice)} | "
                f"`{spec.code}` "
                f"| {retry_text} | {spec.http} | {spec.jsonrpc_code} | `{spec.grpc}` |"
            )


def _name_branch(branch: type[Problem]) -> str:
    """Name a branch of the tree by its numbers and what it is about."""
    first = next(leaf.spec.number for leaf in list_problem_types() if issubclass(leaf, branch))
    return f"E{first // 100}xx {branch.__name__.removesuffix('Problem')}"


def _read_summary(kind: type[object]) -> str:
    """Read the first paragraph of a docstring; the rest is for readers of the code."""
    return render_cell((inspect.getdoc(kind) or "").partition("\n\n")[0])


def build_api_document() -> dict[str, Any]:
    """Build the OpenAPI document as a running gateway serves it, without starting one."""

    def refuse_to_open() -> AbstractAsyncContextManager[Gateway]:
        raise RuntimeError("no gateway is started to build the API document")

    document: dict[str, Any] = build_api(refuse_to_open).rest.openapi()
    return document


def render_api_document() -> str:
    return _render_json(build_api_document(), depth=3) + "\n"


def _render_json(value: Any, *, depth: int) -> str:
    """Render with a line for each operation and each schema, so that a change of the API is a diff that people read."""
    if depth == 0 or not isinstance(value, dict):
        return json.dumps(value, sort_keys=True, ensure_ascii=False)
    lines = (f"{json.dumps(name)}: {_render_json(value[name], depth=depth - 1)}" for name in sorted(value))
    return "{\n" + ",\n".join(lines) + "\n}"


def render_routes_page() -> str:
    about = (
        "A running gateway serves the OpenAPI document at `/openapi.json` and a page to try it at `/docs`. Everything "
        "under `/v1` and `/rpc` needs `Authorization: Bearer TOKEN`. Metrics have a port of their own: "
        "[Telemetry](telemetry.md). [Errors](errors.md) explains each error."
    )
    return render_page("Routes", about, _render_routes())


def _render_routes() -> Iterator[str]:
    document = build_api_document()
    for path, operations in sorted(document["paths"].items()):
        for method, operation in operations.items():
            summary = operation.get("summary", "").rstrip(".")
            yield from ("", f"## {method.upper()} {path}", "", f"{summary}. `{operation['operationId']}`")
            if description := operation.get("description"):
                yield from ("", render_cell(description))
            parameters = operation.get("parameters") or []
            if parameters:
                yield from ("", "| parameter | in | type | default | what it is |", "|---|---|---|---|---|")
                yield from (_render_route_parameter(each, document) for each in parameters)
            yield from ("", "| status | meaning |", "|---|---|")
            for status, answer in sorted(operation["responses"].items()):
                # FastAPI describes a success in these words if a route does not.
                meaning = answer.get("description", "").replace("Successful Response", "Success.")
                yield f"| {status} | {render_cell(meaning)} |"


def _render_route_parameter(parameter: dict[str, Any], document: dict[str, Any]) -> str:
    schema = parameter["schema"]
    meaning = parameter.get("description") or schema.get("description", "")
    default = "required" if parameter["required"] else "unset"
    if schema.get("default", "") != "":
        default = f"`{schema['default']}`"
    kind = render_cell(_render_schema_type(schema, document))
    return f"| `{parameter['name']}` | {parameter['in']} | {kind} | {default} | {render_cell(meaning)} |"


def _render_schema_type(schema: dict[str, Any], document: dict[str, Any]) -> str:
    """Name the type of a parameter, from its JSON Schema."""
    if reference := schema.get("$ref"):
        return _render_schema_type(document["components"]["schemas"][reference.rpartition("/")[2]], document)
    if variants := schema.get("anyOf"):
        return " or ".join(_render_schema_type(each, document) for each in variants if each.get("type") != "null")
    if values := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return _join_choices(f"`{each}`" for each in values)
    if schema["type"] == "array":
        return f"list of {_render_schema_type(schema['items'], document)}s"
    if schema["type"] == "integer" and "maximum" in schema:
        return f"integer, {schema['minimum']} to {schema['maximum']}"
    kinds: dict[str, str] = {"uuid": "UUID", "date-time": "date and time"}
    return kinds.get(schema.get("format", ""), str(schema["type"]))


def walk_commands() -> Iterator[tuple[str, Any]]:
    """Yield every command that help shows, by its full name and in the order of the help."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield name, command
        for child, inside in getattr(command, "commands", {}).items():
            if not inside.hidden:
                yield from walk(f"{name} {child}", inside)

    return walk("deputize", typer.main.get_command(app))


def render_cli_page() -> str:
    about = (
        "`deputize COMMAND --help` shows the same in a terminal. Results go to stdout, messages to stderr. "
        "`deputize --install-completion` adds completion of commands and of your tools' names to your shell."
    )
    return render_page("Commands", about, _render_commands())


def _render_exit_codes() -> Iterator[str]:
    yield from ("", "| exit code | meaning |", "|---|---|")
    yield from (f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())


def _render_commands() -> Iterator[str]:
    yield from _render_exit_codes()
    for name, command in walk_commands():
        if name == "deputize":
            continue
        yield from ("", f"## {name}", "", render_cell(inspect.cleandoc(command.help or "")))
        if command.epilog:
            yield from ("", "```console", f"$ {command.epilog.removeprefix('Example: ')}", "```")
        rows = [row for parameter in command.params if (row := _render_parameter(parameter, command))]
        if rows:
            yield from ("", "| argument or option | what it is |", "|---|---|", *rows)


def _render_parameter(parameter: Any, command: Any) -> str:
    help_text = render_cell(getattr(parameter, "help", "") or "")
    if parameter.name == "help" or getattr(parameter, "hidden", False):
        return ""
    default = getattr(parameter.default, "value", parameter.default)
    if default not in (None, False, "", []) and not callable(default):
        help_text += f" Default: `{default}`."
    if parameter.param_type_name == "argument":
        return f"| `{parameter.metavar or parameter.name.upper()}` | {help_text} |"
    value = _render_option_value(parameter, command)
    names = ", ".join(f"`{name}{value}`" for name in parameter.opts)
    variable = f" Environment: `{parameter.envvar}`." if parameter.envvar else ""
    return f"| {render_cell(names)} | {help_text}{variable} |"


def _render_option_value(parameter: Any, command: Any) -> str:
    """Name the value of an option: the choices, or what kind of value it is; nothing for a flag."""
    if parameter.is_flag:
        return ""
    kind = parameter.display_type(command.context_class(command)).strip("<>")
    if "|" in kind:
        return f" {kind}"
    return f" {parameter.metavar or ('NUMBER' if kind.startswith(('int', 'float')) else 'TEXT')}"


def render_telemetry_page() -> str:
    about = (
        "Metrics are served as Prometheus text at `/metrics`, on a port of their own (`metrics_host` and "
        "`metrics_port` under `[server]`). No metric names a tenant. Spans are sent to `otlp_endpoint` under "
        "`[telemetry]`. A call with a `traceparent` header continues that trace; other calls of an agent whose "
        "delegation names a task have one trace for the whole task."
    )
    return render_page("Telemetry", about, _render_telemetry())


def _render_telemetry() -> Iterator[str]:
    yield from ("", "## Metrics", "", "| metric | labels | what it counts |", "|---|---|---|")
    for metric in telemetry.Metric:
        labels = ", ".join(f"`{label}`" for label in telemetry.METRIC_LABELS[metric])
        yield f"| `{metric}` | {labels} | {render_cell(telemetry.METRIC_HELP[metric])} |"
    yield from (
        "",
        "## Spans",
        "",
        "A call is [one trace](../how-to/monitor-a-gateway.md#follow-one-call), however long it waits.",
        "",
    )
    yield from ("| span | what it covers |", "|---|---|")
    yield from (f"| `{span}` | {render_cell(telemetry.SPAN_HELP[span])} |" for span in telemetry.Span)
    yield from ("", "## Attributes of spans", "")
    yield from (
        f"Names that do not begin with `deputize.` are those of OpenTelemetry's semantic conventions for GenAI, MCP, "
        f"HTTP and RPC, version {telemetry.SEMANTIC_CONVENTIONS}.",
        "",
    )
    yield from (f"- `{attribute}`" for attribute in telemetry.Attribute)


def render_cedar_schema_page() -> str:
    return render_page("Cedar schema", cedar_schema.INTRODUCTION, cedar_schema.render_lines())


def render_agent_tool_page() -> str:
    return render_page("Agent Tool objects", agent_tool.INTRODUCTION, agent_tool.render_objects())


def render_contract_page() -> str:
    return render_page("Contract", contract_reference.INTRODUCTION, contract_reference.render_lines())


def render_audit_entries_page() -> str:
    return render_page("Audit entries", audit_entries.INTRODUCTION, audit_entries.render_lines())


def render_promises_page() -> str:
    about = f"Every requirement has a row. Tests show each one that is done or partial. Now: {promises.count_states()}."
    return render_page("Promises", about, promises.render_lines())


def render_help_file() -> str:
    """Render the help of `deputize` as a terminal of the usual width shows it."""
    command: Any = typer.main.get_command(app)
    context = command.context_class(
        command, info_name=command.name, terminal_width=HELP_COLUMNS - 2, **command.context_settings
    )
    return f"{command.get_help(context)}\n"


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": render_settings_page,
    "errors.md": render_errors_page,
    "routes.md": render_routes_page,
    "openapi.json": render_api_document,
    "cli.md": render_cli_page,
    "telemetry.md": render_telemetry_page,
    "cedar-schema.md": render_cedar_schema_page,
    "agent-tool.md": render_agent_tool_page,
    "contract.md": render_contract_page,
    "audit-entries.md": render_audit_entries_page,
    "promises.md": render_promises_page,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the pages and the help with the code, or write them."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the pages")
    write = parser.parse_args(arguments).write
    stale = []
    files = {FOLDER / name: render for name, render in PAGES.items()} | {HELP_FILE: render_help_file}
    files |= {scale.PAGE: scale.render_scale_page, **scale.list_pictures()}
    for file, render in files.items():
        text = render()
        if write:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(file)
    for file in stale:
        print(f"docs: {file} is out of date: run python -m docs.generate --write", file=sys.stderr)
    if not stale:
        print(f"docs: {len(files)} generated files are current")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
