"""Define `deputize tool export`: a tool in the format of another system."""

from typing import Annotated

import typer

from deputize.core.contract.export_format import ExportFormat
from deputize.interfaces.cli.client.target import Token, Url, build_tool_path, find_gateway
from deputize.interfaces.cli.commands.tool import Name
from deputize.interfaces.cli.render.output import Json, format_json, printer


def export_tool(
    name: Name,
    form: Annotated[
        ExportFormat,
        typer.Option("--format", help="The tool standard, a model API, or plain JSON Schema.", show_default=False),
    ],
    version: Annotated[str | None, typer.Option(help="Version or range. Default: the latest.")] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Write a tool in the format of another system: the definition on stdout, warnings on stderr."""
    path = f"{build_tool_path(name)}/export"
    answer = find_gateway(url, token).get(path, format=form, version=version)
    if json:
        printer.json(answer)
    printer.line(format_json(answer["definition"]))
    for warning in answer["warnings"]:
        printer.warn(f"{answer['name']}: {warning}")
