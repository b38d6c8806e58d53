"""Describe one result of `deputize doctor`."""

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["good", "warning", "broken", "skipped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Result of one check: its status, what was found, and what to do about it."""

    check: str
    status: Status
    summary: str
    todo: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON."""
        return {"check": self.check, "status": self.status, "found": self.summary, "todo": self.todo}
