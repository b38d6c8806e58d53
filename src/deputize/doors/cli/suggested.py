"""How drafts learned from approvals look in a terminal: the file on stdout, everything about it beside it."""

from collections.abc import Mapping, Sequence
from typing import Any

from deputize.core.plain import plain
from deputize.doors.cli.output import counted, printer

_MOST_ROWS = 30
_NAME = 120


def show_suggestions(answer: Mapping[str, Any]) -> None:
    file, found = answer["file"], answer["suggestions"]
    if file is not None:
        printer.line(file["text"].rstrip("\n"))
    _withheld(answer["withheld"])
    looked = f"{counted(answer['tickets'], 'decided ticket')} since {str(answer['since']).partition('T')[0]}"
    if file is None:
        printer.aside(f"Nothing to suggest from {looked}.")
        return
    printer.aside(f"{counted(len(found), 'permit')} from {looked}")
    tried = answer["backtest"]
    printer.aside(
        f"  tried on {counted(tried['calls'], 'recorded call')}: {tried['looser']} that asked would be allowed, "
        f"{tried['stricter']} refused, {tried['untold']} cannot be told"
    )
    printer.warn("nothing was changed: these are drafts, and whoever puts them in force answers for them")
    printer.aside(f"  to adopt them: read them, save them as {file['path']}, deputize policy put --dry-run, and put")


def _withheld(several: Sequence[Mapping[str, Any]]) -> None:
    for each in several[:_MOST_ROWS]:
        agents = f"{plain(each['agents'][0], _NAME)} for " if each["agents"] else ""
        who = f"{agents}{plain(each['user'], _NAME)}"
        approved = f"{counted(each['calls'], 'call')} of {plain(each['tool'], _NAME)} by {who}"
        printer.aside(f"  no permit for {approved}, all approved: {plain(each['why'], 400)}")
    if len(several) > _MOST_ROWS:
        printer.aside(f"  and {len(several) - _MOST_ROWS} more; --json lists them all")
