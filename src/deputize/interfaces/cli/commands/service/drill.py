"""Define `deputize drill`: rehearse a restore and a failover on scratch databases."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.project_file import enter_project, load_settings
from deputize.interfaces.cli.render.output import EXIT_FAILED, CommandExit, Json, format_count, printer

if TYPE_CHECKING:
    from deputize.core.settings import Settings

group = typer.Typer(
    no_args_is_help=True, help="Rehearse a restore and a failover on scratch databases. For the operator."
)

ScratchUrl = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="DEPUTIZE_DRILL_URL",
        help="URL of the scratch database. The environment variable keeps its password out of the process list.",
    ),
]


@group.command(epilog="Example: deputize drill restore --url postgresql://owner@scratch:5432/restored")
def restore(url: ScratchUrl = "", json: Json = False) -> None:
    """Recover a restored copy of the live database as deputize recover would, and report what it lacks.

    The copy is changed and must not be used for service. The live database of deputize.toml is only read, if it
    answers.
    """
    from deputize.interfaces.cli.local.drills import drill_restore

    report = drill_restore(_load_settings(), _require_url(url))
    if json:
        printer.json(asdict(report))
    if report.loss is None:
        printer.success(f"{report.database} lacks nothing that is known outside of it")
    else:
        printer.warn(f"{report.database} went back in time: {report.loss}")
    if not report.is_live_compared:
        printer.note(f"{report.live} did not answer: what was lost is known from the records of this machine alone")
    columns = ("tenant", "newest entry", "entries", "lost", "lost of those signed", "acts to repeat")
    rows = [
        (
            each.tenant,
            each.newest_entry or "none",
            str(each.entries),
            _show(each.lost_entries),
            _show(each.signed_entries_lost),
            _show(each.lost_acts and ", ".join(f"{count} {name}" for name, count in each.lost_acts.items() if count)),
        )
        for each in report.tenants
    ]
    if not json:
        printer.table(columns, rows)
    if report.lineage is not None:
        printer.success(
            f"Recovered in {report.recover_seconds:.1f} s (compared in {report.compare_seconds:.1f} s): "
            f"{format_count(report.unknown_calls, 'call')} UNKNOWN, "
            f"{format_count(report.void_approvals, 'approval request')} void"
        )
    if report.key_problem is not None:
        printer.error(report.key_problem)
        raise CommandExit(EXIT_FAILED)
    printer.success(f"The master key opens the keys of {format_count(report.keys_opened, 'tenant')}")


@group.command(epilog="Example: deputize drill failover --promote 'patronictl switchover --force'")
def failover(
    context: typer.Context,
    url: ScratchUrl = "",
    promote: Annotated[
        str, typer.Option("--promote", metavar="COMMAND", help="Command that promotes the standby. Default: you do.")
    ] = "",
    rate: Annotated[float, typer.Option(min=1, max=200, help="Calls per second.")] = 20,
    seconds: Annotated[float, typer.Option(min=5, max=3600, help="How long to wait for the new primary.")] = 120,
    json: Json = False,
) -> None:
    """Make governed calls on an empty scratch cluster while its standby is promoted, and report what became of them.

    The URL names primary and standby, as that of gateways does: postgresql://user@a,b/drill?target_session_attrs=
    read-write. The calls go through a gateway in this process, with a tool whose effects are counted.
    """
    from deputize.interfaces.cli.local.drills import drill_failover

    settings = _load_settings()

    def report_steady() -> None:
        printer.note(f"Calls succeed. {f'Running {promote}' if promote else 'Promote the standby now.'}")

    report = drill_failover(
        context.obj,
        settings,
        _require_url(url),
        promote=promote,
        rate=rate,
        limit_seconds=seconds,
        report_steady=report_steady,
    )
    if json:
        printer.json(asdict(report))
    if not report.had_synchronous_standby:
        printer.warn(
            "The primary had no synchronous standby, so acknowledged calls can be lost: synchronous_standby_names"
        )
    refused = ", ".join(f"{count} {error}" for error, count in sorted(report.refused.items())) or "none"
    printer.line(f"acknowledged  {report.acknowledged}, of which the new primary lacks {len(report.lost)}")
    printer.line(f"refused       {refused}; {report.repeated} of them succeeded when sent again")
    printer.line(f"done twice    {len(report.done_twice)}")
    printer.line(f"without calls {report.seconds_without_calls:.1f} s")
    for call_id in report.lost[:10]:
        printer.error(f"lost: call {call_id}")
    if not report.was_promoted:
        printer.error(f"No new primary answered within {seconds:g} s: does the URL name the standby, too?")
    if report.lost or report.done_twice or not report.was_promoted:
        raise CommandExit(EXIT_FAILED)
    printer.success("No acknowledged call was lost, and none was done twice")


def _load_settings() -> "Settings":
    from deputize.interfaces.cli.local.logs import configure_logs

    enter_project()
    settings = load_settings()
    # What a gateway logs while its database is away is no news here.
    configure_logs(settings.telemetry.model_copy(update={"log_level": "error"}))
    return settings


def _require_url(url: str) -> str:
    if not url:
        raise ConfigError("Which scratch database? Set DEPUTIZE_DRILL_URL, or --url, to its URL.")
    return url


def _show(value: object) -> str:
    return "not known" if value is None else str(value or 0)
