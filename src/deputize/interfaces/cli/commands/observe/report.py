"""Define `deputize observe report`: what agents did, what policies would have decided, and what was unusual."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.commands.policy import run_backtest
from deputize.interfaces.cli.render.output import Json, exit_with_error, format_count, printer

if TYPE_CHECKING:
    from deputize.interfaces.cli.client.rest_client import GatewayClient

_MAX_FILE_BYTES = 4 * 1_048_576


def report(
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Start of the period: 7d, 12h or 45m ago, or a date; in UTC.")
    ] = "7d",
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write one page with charts to this file.")
    ] = None,
    draft: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A policy file to try on the calls, too; repeat for a set of several."),
    ] = None,
    write_policy: Annotated[
        Path | None,
        typer.Option(
            "--write-policy", metavar="FILE", help="Write a first policy that allows the ordinary calls, and try it."
        ),
    ] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Report who called what, what the default policies or a draft would have decided, and which calls were unusual.

    Needs an administrator. Nothing is changed: a policy that is written becomes active only by observe enforce.
    """
    from deputize.interfaces.cli.client.times import parse_first_day, parse_time
    from deputize.interfaces.cli.local.report_files import require_targets, write_page
    from deputize.interfaces.cli.render.observation import print_observation
    from deputize.interfaces.cli.render.observation_page import render_page

    require_targets(html, write_policy)
    draft_files = [{"path": str(each), "text": _read_text(each)} for each in draft or ()]
    gateway = find_gateway(url, token)
    with printer.spinner("Reading the audit"):
        observation_report = gateway.get("/v1/observations", since=parse_time(since, "since"))
        cost = gateway.get("/v1/cost", by="tool", since=parse_first_day(since, "since"))
    observation: dict[str, Any] = {
        "observed": observation_report,
        "cost": cost,
        "default": run_backtest(gateway, [], since),
        "draft": run_backtest(gateway, draft_files, since) if draft_files else None,
        "written": _write_policy(gateway, observation_report["policy"], write_policy, since) if write_policy else None,
    }
    if html is not None:
        write_page(html, render_page(observation))
    if json:
        printer.json(observation)
        return
    print_observation(observation)
    _print_files(observation_report, html, write_policy)


def _print_files(observation_report: dict[str, Any], html: Path | None, write_policy: Path | None) -> None:
    """Print what was written, and what to do next."""
    if html is not None:
        printer.success(f"Wrote the report to {html}")
    if write_policy is not None:
        count = format_count(observation_report["policy"]["calls"], "ordinary call")
        printer.success(f"Wrote a first policy from {count} to {write_policy}. Read it before you use it.")
        printer.line(f"  Enforce it: deputize observe enforce {write_policy}")
    elif observation_report["calls"]:
        printer.line("  Write a first policy from this: deputize observe report --write-policy observed.cedar")


def _write_policy(gateway: "GatewayClient", policy: dict[str, Any], file: Path, since: str) -> dict[str, Any]:
    """Write the drafted policy, and try exactly it on the calls of the period."""
    from deputize.interfaces.cli.local.report_files import write_policy_file

    if not policy["calls"]:
        exit_with_error("No ordinary call was seen, so there is no policy to write: observe longer, or set --since.")
    result = run_backtest(gateway, [{"path": str(file), "text": policy["text"]}], since)
    write_policy_file(file, policy["text"])
    return result


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            exit_with_error(f"{file} is larger than {_MAX_FILE_BYTES // 1_048_576} MB: name a policy file.")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not a text file"
        raise ConfigError(f"{file} cannot be read ({why}): name a policy file.") from None
