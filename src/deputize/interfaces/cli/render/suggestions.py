"""Render permits suggested from approvals: the policy file on stdout, everything about it on stderr."""

from collections.abc import Mapping, Sequence
from typing import Any

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.render.output import format_count, printer

_MAX_ROWS = 30
_MAX_NAME_LENGTH = 120


def show_suggestions(answer: Mapping[str, Any]) -> None:
    """Print the suggested file, its backtest, and how to adopt it."""
    file, suggestions = answer["file"], answer["suggestions"]
    if file is not None:
        printer.line(file["text"].rstrip("\n"))
    _print_withheld(answer["withheld"])
    requests = format_count(answer["request_count"], "decided approval request")
    source = f"{requests} since {str(answer['since']).partition('T')[0]}"
    if file is None:
        printer.note(f"No permit to suggest from {source}.")
        return
    printer.note(f"{format_count(len(suggestions), 'permit')} suggested from {source}")
    backtest = answer["backtest"]
    printer.note(
        f"  backtest on {format_count(backtest['calls'], 'recorded call')}: {backtest['looser']} would no longer need "
        f"approval, {backtest['stricter']} would be refused, {backtest['undetermined']} undetermined"
    )
    printer.warn("Nothing was changed: these are drafts. Review them before you activate them.")
    printer.note(
        f"  To adopt them: save them as {file['path']}, run deputize policy put --dry-run, then deputize policy put"
    )


def _print_withheld(entries: Sequence[Mapping[str, Any]]) -> None:
    for each in entries[:_MAX_ROWS]:
        agents = f"{to_display_text(each['agents'][0], _MAX_NAME_LENGTH)} for " if each["agents"] else ""
        who = f"{agents}{to_display_text(each['user'], _MAX_NAME_LENGTH)}"
        summary = f"{format_count(each['calls'], 'call')} of {to_display_text(each['tool'], _MAX_NAME_LENGTH)} by {who}"
        printer.note(f"  no permit for {summary}, all approved: {to_display_text(each['why'], 400)}")
    if len(entries) > _MAX_ROWS:
        printer.note(f"  and {len(entries) - _MAX_ROWS} more; --json lists them all")
