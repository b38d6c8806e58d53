"""Define `deputize cost`: what calls cost, by tool, version, caller, task or day."""

from enum import StrEnum
from typing import Annotated

import typer

from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.render.output import Json, printer


class Dimension(StrEnum):
    """What costs are added up for."""

    TOOL = "tool"
    VERSION = "version"
    CALLER = "caller"
    TASK = "task"
    DAY = "day"


def report_costs(
    by: Annotated[Dimension, typer.Option(help="What to add costs up for.")] = Dimension.TOOL,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="First day, in UTC: 7d for the last seven with today, or a date.")
    ] = "7d",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show at most this many, those that cost most.")] = 20,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Show what calls cost, by component: those of your tenant if you are an administrator, else your own.

    Prices come from the tools' contracts. Different currencies are never added up.
    """
    from deputize.interfaces.cli.client.times import parse_first_day
    from deputize.interfaces.cli.render.cost_chart import print_costs

    report = find_gateway(url, token).get("/v1/cost", by=by.value, since=parse_first_day(since, "since"), limit=limit)
    if json:
        printer.json(report)
    else:
        print_costs(report)
