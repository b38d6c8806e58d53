"""Whether this gateway is alive, and whether it may be given work, with the reason when not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from deputize.lifecycle.rooms import Rooms


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    name: str
    ok: bool
    detail: str


class Background(Protocol):
    """Work that goes on beside the calls; without it, promises quietly lapse."""

    @property
    def alive(self) -> bool: ...


class Health:
    def __init__(self, rooms: Rooms, background: Mapping[str, Background]) -> None:
        self._rooms = rooms
        self._background = background

    def checks(self) -> list[Check]:
        """What readiness stands on; cheap, since it is asked every few seconds."""
        rooms = self._rooms
        skew, limit = rooms.lease.skew_seconds, rooms.settings.timing.max_clock_skew_seconds
        ended = [name for name, work in self._background.items() if not work.alive]
        return [
            Check(name="database", ok=rooms.writer.down is None, detail=rooms.writer.down or "connected"),
            Check(
                name="lease",
                ok=rooms.lease.is_good,
                detail="held" if rooms.lease.is_good else "not renewed in time",
            ),
            Check(
                name="clock",
                ok=abs(skew) <= limit,
                detail=f"{skew:+.3f} s from PostgreSQL's, at most {limit:g} s allowed",
            ),
            Check(name="background", ok=not ended, detail=f"ended: {', '.join(ended)}" if ended else "running"),
        ]

    @property
    def is_ready(self) -> bool:
        return all(check.ok for check in self.checks())
