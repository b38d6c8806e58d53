"""An audit entry becomes one CloudEvent that can be recognized, ordered and filtered."""

from typing import Any

import orjson
import pytest

from deputize.evidence.audit_entries import VERSION
from deputize.evidence.cloud_events import OutgoingEvent, build_event

pytestmark = pytest.mark.requirement("GOV-5")
ENTRY: dict[str, Any] = {
    "call": "c1", "kind": "outcome", "result": "h", "states": ["post_hooks_running", "succeeded"],
    "time": "2026-11-01T00:00:00.000Z", "tool": "crm.put", "v": VERSION,
}  # fmt: skip


def build(entry: bytes | None, call_id: str | None = "c1") -> tuple[OutgoingEvent, dict[str, Any]]:
    event = build_event(
        tenant="acme",
        entry_id="e1",
        sequence=42,
        call_id=call_id,
        entry=entry,
        digest={"entry_size": 70_000, "entry_sha256": "aa"},
        base_url="https://gateway.example",
    )
    return event, orjson.loads(event.body)


def test_an_event_has_the_attributes_of_the_standard_and_the_entry_as_its_data() -> None:
    event, body = build(orjson.dumps(ENTRY))
    assert body == {
        "specversion": "1.0",
        "id": "e1",
        "source": "https://gateway.example/log/acme",
        "type": "tool.invocation.succeeded",
        "subject": "c1",
        "time": "2026-11-01T00:00:00.000Z",
        "datacontenttype": "application/json",
        "tenant": "acme",
        "call": "c1",
        "sequence": "0000000000000042",
        "data": {"events": list(event.types), "entry": ENTRY},
    }
    assert event.types == (
        "tool.hook.post.started", "tool.hook.post.completed", "tool.result.created", "tool.result.persisted",
        "tool.invocation.succeeded",
    )  # fmt: skip


def test_an_entry_without_events_has_a_type_of_its_kind() -> None:
    entry = {"kind": "command", "command": "switch_off", "time": ENTRY["time"], "v": VERSION}
    event, body = build(orjson.dumps(entry), None)
    assert event.type == "audit.command"
    assert "subject" not in body
    assert "call" not in body


@pytest.mark.requirement("GOV-3")
def test_what_time_does_to_an_approval_request_has_types_of_its_own() -> None:
    escalation = {"kind": "command", "command": "escalate_approval", "call": "c1", "time": ENTRY["time"], "v": VERSION}
    assert build(orjson.dumps(escalation))[0].types == ("approval.escalated",)
    expiry = {
        "kind": "outcome", "outcome": "denied", "states": ["denied"], "rules": ["nobody-decided"], "call": "c1",
        "time": ENTRY["time"], "v": VERSION,
    }  # fmt: skip
    event, _ = build(orjson.dumps(expiry))
    assert event.types[0] == "approval.auto_denied"
    assert event.type == "tool.permission.decided"


@pytest.mark.parametrize("changes", [{"v": VERSION + 1}, {"states": ["a_state_of_a_later_release"]}])
def test_an_entry_of_a_later_release_is_sent_with_the_type_of_its_kind(changes: dict[str, Any]) -> None:
    assert build(orjson.dumps({**ENTRY, **changes}))[0].type == "audit.outcome"


@pytest.mark.parametrize("entry", [None, b"not JSON", b"[]", b'{"v":2}'])
def test_an_entry_that_cannot_be_sent_is_named_by_its_digest(entry: bytes | None) -> None:
    event, body = build(entry)
    assert event.type == "audit.opaque"
    assert body["data"] == {"events": ["audit.opaque"], "entry_size": 70_000, "entry_sha256": "aa"}
