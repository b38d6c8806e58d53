"""Build CloudEvents 1.0 from logged audit entries, one for each entry.

An entry has no value of an argument or a result, so neither has its event. Its id is the entry's id and its sequence
the index in the tenant's log: a receiver can recognize repetitions, order events and ask for the receipt.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from deputize.core.states import ToolEvent
from deputize.core.value_types import frozen
from deputize.evidence.agent_tool_events import list_events
from deputize.evidence.audit_entries import ESCALATE_APPROVAL, NOBODY_DECIDED

# Types of entries that record no event of the tool standard, such as the acts of administrators.
_AUDIT_TYPE: Final = "audit."
# The type of an entry that is only named by its size and digest, because it is too large or cannot be read.
OPAQUE_TYPE: Final = "audit.opaque"
_ESCALATED_TYPE: Final = "approval.escalated"
_AUTO_DENIED_TYPE: Final = "approval.auto_denied"
_SEQUENCE_DIGITS: Final = 16


@frozen
class OutgoingEvent:
    """An event as it is sent. `types` are all events of the entry; `type` is the last of them."""

    id: str
    tenant: str
    call_id: str | None
    sequence: int
    type: str
    types: tuple[str, ...]
    body: bytes


def build_event(
    *,
    tenant: str,
    entry_id: str,
    sequence: int,
    call_id: str | None,
    entry: bytes | None,
    digest: Mapping[str, Any],
    base_url: str,
) -> OutgoingEvent:
    """Build the event of an entry. Without `entry`, or if that is not JSON, `digest` stands in its place."""
    fields = _parse_entry(entry)
    types = (OPAQUE_TYPE,) if fields is None else _list_types(fields)
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": entry_id,
        "source": f"{base_url}/log/{tenant}",
        "type": types[-1],
        "datacontenttype": "application/json",
        "tenant": tenant,
        "sequence": f"{sequence:0{_SEQUENCE_DIGITS}d}",
    }
    if call_id is not None:
        event["subject"] = event["call"] = call_id
    if fields is not None and entry is not None:
        event["time"] = fields["time"]
        event["data"] = {"events": types, "entry": orjson.Fragment(entry)}
    else:
        event["data"] = {"events": types, **digest}
    return OutgoingEvent(
        id=entry_id,
        tenant=tenant,
        call_id=call_id,
        sequence=sequence,
        type=types[-1],
        types=types,
        body=orjson.dumps(event),
    )


def _parse_entry(entry: bytes | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    try:
        fields = orjson.loads(entry)
    except orjson.JSONDecodeError:
        return None
    is_entry = isinstance(fields, dict) and {"v", "kind", "time"} <= fields.keys()
    return fields if is_entry else None


def _list_types(fields: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        events: tuple[ToolEvent, ...] = list_events(fields)
    except (KeyError, ValueError):
        # Written by another release; its events are not known here.
        events = ()
    return (*_list_approval_types(fields), *events) or (f"{_AUDIT_TYPE}{fields['kind']}",)


def _list_approval_types(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """List what became of an approval request by time alone: the tool standard has no event for it."""
    if fields.get("command") == ESCALATE_APPROVAL:
        return (_ESCALATED_TYPE,)
    return (_AUTO_DENIED_TYPE,) if fields.get("rules") == [NOBODY_DECIDED] else ()
