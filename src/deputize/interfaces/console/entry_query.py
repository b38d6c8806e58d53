"""Read the filters of the lists of calls and audit entries from the address, and write them back into it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from deputize.core.entry_kinds import DECISION_NAMES, ENTRY_KINDS
from deputize.core.errors import MalformedRequest
from deputize.core.moments import normalize_moment
from deputize.operations.gateway import AuditQuery, EntryFilter

# Each with its label and what may be typed.
FILTERS: Final = {
    "tool": "Tool",
    "caller": "User",
    "agent": "Agent",
    "outcome": "State",
    "rule": "Rule",
    "session": "Session",
    "trace": "Trace",
    "resource": "Resource",
}
_MAX_LENGTH: Final = 600


def read_filters(parameters: Mapping[str, str]) -> dict[str, str]:
    """Read what was typed, without what is empty."""
    names = (*FILTERS, "decision", "kind", "from", "to")
    return {name: text for name in names if (text := parameters.get(name, "").strip()[:_MAX_LENGTH])}


def build_query(filters: Mapping[str, str], *, of_calls: bool) -> AuditQuery:
    """Build the query of the gateway; refuse what it could not mean."""
    decision, kind = filters.get("decision"), filters.get("kind")
    if decision is not None and decision not in DECISION_NAMES:
        raise MalformedRequest(f"decision must be one of {', '.join(DECISION_NAMES)}", details={"field": "decision"})
    if kind is not None and kind not in ENTRY_KINDS:
        raise MalformedRequest(f"kind must be one of {', '.join(ENTRY_KINDS)}", details={"field": "kind"})
    return AuditQuery(
        caller=filters.get("caller"),
        agent=filters.get("agent"),
        filter=EntryFilter(
            tool=filters.get("tool"),
            decision=decision,
            rule=filters.get("rule"),
            outcome=filters.get("outcome"),
            resource=filters.get("resource"),
            session=filters.get("session"),
            trace=filters.get("trace"),
            kind=kind,
            of_calls=of_calls,
        ),
        since=_parse_time(filters, "from"),
        until=_parse_time(filters, "to"),
    )


def parse_before(parameters: Mapping[str, str]) -> UUID | None:
    """Parse where the page begins."""
    text = parameters.get("before")
    try:
        return None if not text else UUID(text)
    except ValueError:
        raise MalformedRequest("before must be the id of an audit entry", details={"field": "before"}) from None


def format_address(path: str, filters: Mapping[str, str], **more: str) -> str:
    """Format the address of a list with its filters."""
    query = urlencode({**filters, **more})
    return f"{path}?{query}" if query else path


def _parse_time(filters: Mapping[str, str], name: str) -> datetime | None:
    """Parse a time; one without a zone is in UTC, as the page says."""
    text = filters.get(name)
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
        return normalize_moment(at if at.tzinfo is not None else at.replace(tzinfo=UTC))
    except ValueError:
        raise MalformedRequest(
            f"{name} must be a time as in 2026-11-18T09:30, in UTC", details={"field": name}
        ) from None
