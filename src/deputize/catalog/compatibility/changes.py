"""Define the changes between two versions of a contract, and how much each means to callers."""

from dataclasses import dataclass
from enum import IntEnum


class ChangeLevel(IntEnum):
    """What a change is to callers: nothing, more than before, or a break. Each needs its part of the version number."""

    PATCH = 0
    MINOR = 1
    MAJOR = 2

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, kw_only=True, slots=True)
class ContractChange:
    """One change: its level, the JSON pointer in the contract, and what happened there."""

    level: ChangeLevel
    path: str
    reason: str
