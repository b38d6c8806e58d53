"""`deputize doctor`: looks at an installation and says, for each thing, whether it is well and what to do."""

from deputize.core.mistakes import Misconfigured
from deputize.doors.cli.output import NO, NOTE, OK, REFUSED, Json, Stopped, counted, give_up, printer
from deputize.doors.cli.project import enter_project, load_settings

_SIGNS = {"good": OK, "warning": NOTE, "broken": NO, "skipped": "·"}


def doctor(json: Json = False) -> None:
    """Check settings, database, keys, issuers, clock, tools, policies, counters and vault; say what to mend."""
    import asyncio

    from deputize.doors.cli import database
    from deputize.doors.cli.examination import examine
    from deputize.doors.cli.finding import Finding
    from deputize.doors.cli.logs import configure_logs

    has_file = enter_project()
    try:
        settings = load_settings()
    except Misconfigured as error:
        give_up(str(error), REFUSED)
    # What is away is a finding here, not a line of a log as well.
    configure_logs(settings.telemetry.model_copy(update={"log_level": "error"}))
    where = "deputize.toml is readable" if has_file else "defaults and the environment; there is no deputize.toml here"
    findings = [Finding(check="settings", status="good", found=where)]

    async def look() -> None:
        local = database.local_dsn(settings.folder) if settings.database.url is None else None
        async for finding in examine(settings, local_dsn=local):
            findings.append(finding)

    with printer.progress("looking …"):
        asyncio.run(look())
    broken = [each for each in findings if each.status == "broken"]
    warnings = [each for each in findings if each.status == "warning"]
    if json:
        printer.json({"ok": not broken, "findings": [each.facts() for each in findings]})
    else:
        printer.table(
            ("", "check", "found", "what to do"),
            [(_SIGNS[each.status], each.check, each.found, each.todo) for each in findings],
        )
        if broken:
            printer.bad(f"{counted(len(broken), 'thing')} must be mended, {counted(len(warnings), 'warning')}")
        else:
            printer.good("nothing is broken" + (f", {counted(len(warnings), 'warning')}" if warnings else ""))
    if broken:
        raise Stopped(REFUSED)
