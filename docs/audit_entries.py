"""Render the page about audit entries from the tables that their encoder and their readers use."""

from collections.abc import Iterator

from deputize.core.degradation import DEGRADATION_MEANINGS
from deputize.core.states import EVENT_BY_STATE
from deputize.evidence.agent_tool_events import EVENT_EMISSIONS, STATE_EMISSIONS
from deputize.evidence.audit_entries import VERSION
from deputize.evidence.entry_fields import ENTRY_FIELDS

INTRODUCTION = (
    "Every call leaves audit entries: a read or a refusal one, a write its intent before the effect and its outcome "
    "after it, and each administrative act one. An entry is canonical JSON (RFC 8785) in "
    f"`deputize.audit_entries.entry`. This release writes version {VERSION} and reads every version since 1, which has "
    "the keys marked with 1. An absent fact is an absent key. No entry has a value of an argument or a result: a "
    "commitment is the SHA-256 of the entry's salt and the redacted value, and the salt is stored beside the entry, "
    "where it can be erased. `GET /v1/calls/{call_id}/audit` and `deputize calls audit` show the entries of a call."
)


def render_lines() -> Iterator[str]:
    yield from ("", "## Keys", "", "| key | since version | what it is |", "|---|---|---|")
    for name, field in ENTRY_FIELDS.items():
        yield f"| `{name}` | {field.since} | {field.meaning} |"
    yield from ("", "## Degradations", "", "| mark | what was degraded |", "|---|---|")
    yield from (f"| `{mark}` | {meaning} |" for mark, meaning in DEGRADATION_MEANINGS.items())
    yield from (
        "", "## States", "",
        "`states` has every state that a call passes, in order; one that may not follow cannot be written.", "",
        "| state | where | announced by |", "|---|---|---|",
    )  # fmt: skip
    for state, emission in STATE_EMISSIONS.items():
        yield f"| `{state}` | {emission.source} | `{EVENT_BY_STATE[state]}` |"
    yield from (
        "", "## Events", "",
        "The events of the tool standard follow from the entries of a call, so they cannot contradict them.", "",
        "| event | where | why not in an entry |", "|---|---|---|",
    )  # fmt: skip
    for event, emission in EVENT_EMISSIONS.items():
        yield f"| `{event}` | {emission.source} | {emission.reason} |"
