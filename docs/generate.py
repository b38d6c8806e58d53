"""Writes the reference pages that the code itself can tell: settings, errors, routes, commands, telemetry, and
what policies see.

`python -m docs.generate` fails when a page is not what the code says; `--write` brings them up to date.
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import typer.main
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from deputize.core import telemetry
from deputize.core.errors import Problem, every_problem
from deputize.core.settings import Settings
from deputize.doors.asgi import build
from deputize.doors.cli.main import app
from deputize.lifecycle.gateway import Gateway
from docs import policy_world

FOLDER = Path(__file__).parent / "reference"
_NOTE = "<!-- Written by `python -m docs.generate --write`; change the code it describes. -->"


def page(title: str, about: str, lines: Iterator[str]) -> str:
    return "\n".join([f"# {title}", "", _NOTE, "", about, *lines]) + "\n"


def cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def settings_page() -> str:
    about = (
        "Each section is a table of `deputize.toml`. A variable of the environment beats the file, and the file beats "
        "the default: `DEPUTIZE_SERVER__PORT=8080` is `port = 8080` under `[server]`."
    )
    return page("Settings", about, _settings(Settings, ()))


def _settings(model: type[BaseModel], path: tuple[str, ...], *, listed: bool = False) -> Iterator[str]:
    plain = {name: field for name, field in model.model_fields.items() if _section(field) is None}
    if plain:
        head = ".".join(path)
        yield from ("", f"## [[{head}]]" if listed else f"## [{head}]" if path else "## At the top of the file", "")
        if listed and model.__doc__:
            yield from (" ".join(model.__doc__.split()), "")
        yield from ("| setting | type | default | what it does |", "|---|---|---|---|")
        for name, field in plain.items():
            yield f"| `{name}` | {cell(_type(field.annotation))} | {_default(field)} | {cell(field.description)} |"
    for name, field in model.model_fields.items():
        section = _section(field)
        if section is not None:
            yield from _settings(section[0], (*path, name), listed=section[1])


def _section(field: FieldInfo) -> tuple[type[BaseModel], bool] | None:
    """The table behind a field, and whether there may be several of it."""
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind, False
    inside = [each for each in get_args(kind) if isinstance(each, type) and issubclass(each, BaseModel)]
    return (inside[0], True) if inside else None


def _type(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_type(each) for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is tuple:
        return f"list of {_type(get_args(kind)[0])}"
    if arguments := get_args(kind):
        return ", ".join(f'`"{each}"`' for each in arguments)
    names = {str: "text", SecretStr: "text, secret", int: "whole number", float: "number", bool: "`true` or `false`"}
    return names.get(kind, "path" if kind is Path else kind.__name__)


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(_quoted(each) for each in value)}]`"
    return f"`{_quoted(value)}`"


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str | Path) else str(value)


def errors_page() -> str:
    about = (
        "Every refusal and failure, the same through every door. Over HTTP it is an RFC 9457 problem whose `type` is "
        "`urn:deputize:problem:` and the slug; agents branch on the code. Retryable means that the same call, with the "
        "same idempotency key, may succeed later."
    )
    return page("Errors", about, _errors())


def _errors() -> Iterator[str]:
    branches: dict[type[Problem], list[type[Problem]]] = {}
    for problem in every_problem():
        branches.setdefault(problem.__mro__[1], []).append(problem)
    for branch, problems in branches.items():
        yield from ("", f"## {branch.__name__}", "", cell(inspect.getdoc(branch)), "")
        yield from ("| number | slug | what happened | what to do | code | retryable | HTTP | JSON-RPC | gRPC |",)
        yield "|---|---|---|---|---|---|---|---|---|"
        for problem in problems:
            face = problem.face
            retry = "yes" if face.retryable else "no"
            yield (
                f"| {face.e_number} | `{face.slug}` | {cell(face.title)} | {cell(face.advice)} | `{face.code}` "
                f"| {retry} | {face.http} | {face.jsonrpc_code} | `{face.grpc}` |"
            )


def api_document() -> dict[str, Any]:
    """The OpenAPI document as a running gateway serves it; no gateway is opened to read it."""

    def unopened() -> AbstractAsyncContextManager[Gateway]:
        raise RuntimeError("the document is read from the routes alone")

    document: dict[str, Any] = build(unopened).rest.openapi()
    return document


def routes_page() -> str:
    about = (
        "A running gateway serves the OpenAPI document at `/openapi.json` and a page to try it at `/docs`. Everything "
        "under `/v1` and `/rpc` needs `Authorization: Bearer TOKEN`. Metrics are served on a listener of their own: "
        "[Telemetry](telemetry.md). What each refusal means: [Errors](errors.md)."
    )
    return page("Routes", about, _routes())


def _routes() -> Iterator[str]:
    for path, operations in sorted(api_document()["paths"].items()):
        for method, operation in operations.items():
            yield from ("", f"## {method.upper()} {path}", "", f"{operation.get('summary', '').rstrip('.')}.")
            if described := operation.get("description"):
                yield from ("", cell(described))
            parameters = operation.get("parameters") or []
            if parameters:
                yield from ("", "| parameter | in | what it is |", "|---|---|---|")
                for each in parameters:
                    told = each.get("description") or each.get("schema", {}).get("description", "")
                    yield f"| `{each['name']}` | {each['in']} | {cell(told)} |"
            yield from ("", "| status | meaning |", "|---|---|")
            for status, answer in sorted(operation["responses"].items()):
                yield f"| {status} | {cell(answer.get('description', ''))} |"


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of the command line by its full name, in the order of the help."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield name, command
        for child, inside in getattr(command, "commands", {}).items():
            yield from walk(f"{name} {child}", inside)

    return walk("deputize", typer.main.get_command(app))


def cli_page() -> str:
    about = (
        "`deputize COMMAND --help` says the same in a terminal. Exit codes: 0 well, 1 a call or check that was refused "
        "or failed, 2 a command or configuration that cannot be carried out. Results go to stdout, everything about "
        "them to stderr. "
        "`deputize --install-completion` teaches your shell the commands and the names of your tools."
    )
    return page("Commands", about, _commands())


def _commands() -> Iterator[str]:
    for name, command in commands():
        if name == "deputize":
            continue
        yield from ("", f"## {name}", "", cell(inspect.cleandoc(command.help or "")))
        if command.epilog:
            yield from ("", "```console", f"$ {command.epilog.removeprefix('Example: ')}", "```")
        rows = [row for parameter in command.params if (row := _parameter(parameter))]
        if rows:
            yield from ("", "| argument or option | what it is |", "|---|---|", *rows)


def _parameter(parameter: Any) -> str:
    told = cell(getattr(parameter, "help", "") or "")
    if parameter.name == "help" or getattr(parameter, "hidden", False):
        return ""
    if parameter.param_type_name == "argument":
        return f"| `{parameter.metavar or parameter.name.upper()}` | {told} |"
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    variable = f" Environment: `{parameter.envvar}`." if parameter.envvar else ""
    default = parameter.default
    shown = f" Default: {default}." if default not in (None, False, "", []) and not callable(default) else ""
    return f"| {names} | {told}{shown}{variable} |"


def telemetry_page() -> str:
    about = (
        "Metrics are Prometheus text at `/metrics` on a listener of its own (`metrics_host` and `metrics_port` under "
        "`[server]`); none names a tenant. Spans go to `otlp_endpoint` under `[telemetry]`; a `traceparent` that came "
        "with the call is continued."
    )
    return page("Telemetry", about, _telemetry())


def _telemetry() -> Iterator[str]:
    yield from ("", "## Metrics", "", "| metric | labels | what it counts |", "|---|---|---|")
    for metric in telemetry.Metric:
        labels = ", ".join(f"`{label}`" for label in telemetry.METRIC_LABELS[metric])
        yield f"| `{metric}` | {labels} | {cell(telemetry.METRIC_HELP[metric])} |"
    yield from ("", "## Spans", "", "One for the call, and inside it one for each phase.", "")
    yield from (f"- `{span}`" for span in telemetry.Span)
    yield from ("", "## Attributes of spans", "")
    yield from (f"- `{attribute}`" for attribute in telemetry.Attribute)


def policy_world_page() -> str:
    return page("What policies see", policy_world.ABOUT, policy_world.lines())


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "errors.md": errors_page,
    "routes.md": routes_page,
    "cli.md": cli_page,
    "telemetry.md": telemetry_page,
    "policy-world.md": policy_world_page,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the pages with the code, or write them."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the pages")
    write = parser.parse_args(arguments).write
    stale = []
    for name, make in PAGES.items():
        file, text = FOLDER / name, make()
        if write:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(name)
    for name in stale:
        print(f"docs: reference/{name} is not what the code says: run python -m docs.generate --write", file=sys.stderr)
    if not stale:
        print(f"docs: {len(PAGES)} generated pages are current")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
