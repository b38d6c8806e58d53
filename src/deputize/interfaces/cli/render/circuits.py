"""Show the circuits of external services, for `deputize health` and `deputize servers circuits`."""

from collections.abc import Sequence
from typing import Any

from deputize.interfaces.cli.render.output import NO, NOTE, OK, printer

_SIGNS = {"closed": OK, "open": NO, "half_open": NOTE}


def print_circuits(circuits: Sequence[dict[str, Any]]) -> None:
    """Print a line for each service: the state of its circuit, since when, the next trial and what opened it."""
    rows = [
        (
            _SIGNS[each["state"]], each["service"], each["state"].replace("_", " "), format_time(each["since"]),
            format_time(each["retry_at"]), str(each["failures"]), each["reason"] or "",
        )
        for each in circuits
    ]  # fmt: skip
    printer.table(("", "service", "circuit", "since", "tried again at", "failures", "opened by"), rows)


def format_time(at: str | None) -> str:
    """Format a time for a table, without its fraction of a second."""
    return "" if at is None else at.partition(".")[0].replace("T", " ").removesuffix("+00:00")
