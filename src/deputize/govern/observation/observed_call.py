"""Hold one recorded call as far as an observation needs it: who, what, with which arguments, and how it ended."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from deputize.core.value_types import frozen

# Longer texts are compared by their beginning and their length.
MAX_TEXT_LENGTH: Final = 200
_REFUSED: Final = frozenset({"blocked", "denied", "validation_failed", "schema_parse_failed"})
_FAILED: Final = frozenset({"failed", "timed_out", "unknown"})
FactValue = bool | int | str | tuple[str, ...]


@frozen
class ObservedCall:
    """One call. Texts in `facts` are cut, and `lengths` has how long they were."""

    call_id: str
    at_ms: int
    user: str
    agents: tuple[str, ...]
    tool: str
    system: str
    # As the call was decided, and as the tool's name suggests.
    effects: str
    inferred_effects: str
    facts: Mapping[str, FactValue]
    lengths: Mapping[str, int]
    # Facts whose value was a secret by its shape, and was not recorded.
    secret_facts: tuple[str, ...]
    suspicions: tuple[str, ...]
    outcome: str
    error: str
    cost_micros: int
    session: str
    result_bytes: int

    @property
    def actor(self) -> str:
        """The agent that made the call, or the user."""
        return self.agents[0] if self.agents else self.user

    @property
    def is_read(self) -> bool:
        return self.inferred_effects == "read"

    @property
    def is_refused(self) -> bool:
        return self.outcome in _REFUSED

    @property
    def has_failed(self) -> bool:
        return self.outcome in _FAILED

    @property
    def hour(self) -> int:
        """The hour of the day, in UTC."""
        return self.at_ms // 3_600_000 % 24

    @property
    def weekday(self) -> int:
        """The day of the week, from 0 for Monday, in UTC."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC).weekday()

    @property
    def day(self) -> int:
        """The number of the day since 1970, in UTC."""
        return self.at_ms // 86_400_000


def parse_call(value: Mapping[str, Any]) -> ObservedCall:
    """Parse a call from what `operations/audit/observations.py` collected."""
    return ObservedCall(
        call_id=value["call"],
        at_ms=value["at"],
        user=value["user"],
        agents=tuple(value["agents"]),
        tool=value["tool"],
        system=value["system"],
        effects=value["effects"],
        inferred_effects=value["inferred"],
        facts={name: _to_fact(each) for name, each in value["facts"].items()},
        lengths=value["lengths"],
        secret_facts=tuple(value["secret"]),
        suspicions=tuple(value["suspicions"]),
        outcome=value["outcome"],
        error=value["error"],
        cost_micros=value["cost"],
        session=value["session"],
        result_bytes=value["bytes"],
    )


def find_share(values: Sequence[int], share: float) -> int:
    """Find the value that this share of sorted values does not exceed."""
    return values[min(int(len(values) * share), len(values) - 1)] if values else 0


def _to_fact(value: Any) -> FactValue:
    if isinstance(value, list):
        return tuple(str(each) for each in value)
    return value if isinstance(value, bool | int | str) else str(value)
