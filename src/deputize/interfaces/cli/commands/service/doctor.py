"""Define `deputize doctor`: check an installation, and print what to do about each problem."""

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.target import fetch_active_policies, fetch_servers
from deputize.interfaces.cli.local.project_file import enter_project, load_settings
from deputize.interfaces.cli.render.output import (
    EXIT_FAILED,
    NO,
    NOTE,
    OK,
    CommandExit,
    Json,
    exit_with_error,
    format_count,
    printer,
)

_STATUS_SIGNS = {"good": OK, "warning": NOTE, "broken": NO, "skipped": "·"}


def doctor(json: Json = False) -> None:
    """Check settings, database, keys, issuers, clock, tools, policies, servers and clients, and print how to fix them.

    Exits with 1 if anything is broken; warnings alone exit with 0.
    """
    import asyncio

    from deputize.interfaces.cli.diagnostics.checks import check_installation
    from deputize.interfaces.cli.diagnostics.finding import Finding
    from deputize.interfaces.cli.diagnostics.policy_checks import check_unconfirmed_edits
    from deputize.interfaces.cli.local import database
    from deputize.interfaces.cli.local.logs import configure_logs

    has_file = enter_project()
    try:
        settings = load_settings()
    except ConfigError as error:
        exit_with_error(str(error), EXIT_FAILED)
    # What cannot be reached is a finding, and needs no log line as well.
    configure_logs(settings.telemetry.model_copy(update={"log_level": "error"}))
    source = "deputize.toml is valid" if has_file else "no deputize.toml here; using defaults and the environment"
    findings = [Finding(check="settings", status="good", summary=source)]

    if has_file and settings.database.url is None:
        findings += check_unconfirmed_edits(settings, fetch_active_policies())
    live_servers = fetch_servers() if settings.servers else None

    async def collect_findings() -> None:
        local = database.find_local_dsn(settings.folder) if settings.database.url is None else None
        async for each in check_installation(settings, local_dsn=local, live_servers=live_servers):
            findings.append(each)

    with printer.spinner("Checking …"):
        asyncio.run(collect_findings())
    failures = [each for each in findings if each.status == "broken"]
    warnings = [each for each in findings if each.status == "warning"]
    if json:
        printer.json({"ok": not failures, "findings": [each.to_json() for each in findings]})
    else:
        printer.table(
            ("", "check", "found", "what to do"),
            [(_STATUS_SIGNS[each.status], each.check, each.summary, each.todo) for each in findings],
        )
        warning_text = f", {format_count(len(warnings), 'warning')}" if warnings else ""
        if failures:
            printer.error(f"{format_count(len(failures), 'problem')} to fix{warning_text}")
        else:
            printer.success(f"No problems found{warning_text}")
    if failures:
        raise CommandExit(EXIT_FAILED)
