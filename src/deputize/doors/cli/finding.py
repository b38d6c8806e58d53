"""One thing `deputize doctor` looked at: what it found, and what to do about it."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["good", "warning", "broken", "skipped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    check: str
    status: Status
    found: str
    todo: str = ""

    def facts(self) -> dict[str, Any]:
        return asdict(self)
