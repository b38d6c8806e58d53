"""Define the notice that a version is deprecated: since when, until when it is served, and what replaces it."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Final

from deputize.core.contract.publication import EndOfLife

# How long a deprecated version is served, unless its notice says otherwise.
GRACE: Final = timedelta(days=90)
# A deprecated version is retired only if it was not used for so long.
QUIET_TIME: Final = timedelta(hours=24)
# The time that a usage report is about, and the time between two of them.
REPORT_TIME: Final = timedelta(days=7)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeprecationNotice:
    """The notice of one version. From `removal_at` on, calls of it are refused; None sets no end.

    `successor` is a tool, or a version of one as in `crm.find@2.0.0`.
    """

    deprecated_at: datetime | None = None
    removal_at: datetime | None = None
    successor: str | None = None
    migration_guide: str | None = None

    @classmethod
    def from_contract(cls, life: EndOfLife) -> "DeprecationNotice":
        """Build the notice that a contract declares itself, for a version without another one."""
        return cls(
            deprecated_at=_parse_day(life.deprecation_date),
            removal_at=_parse_day(life.sunset_date),
            successor=life.replacement,
            migration_guide=life.migration_guide_url,
        )

    @property
    def removal_ms(self) -> float:
        """The time from which on calls are refused, in milliseconds since 1970."""
        return float("inf") if self.removal_at is None else self.removal_at.timestamp() * 1000

    def to_json(self) -> dict[str, Any]:
        return {
            "deprecated_at": format_time(self.deprecated_at),
            "removal_date": format_time(self.removal_at),
            "successor": self.successor,
            "migration_guide": self.migration_guide,
        }

    def to_meta(self) -> dict[str, Any]:
        """Build the notice as the tool standard spells it, for MCP."""
        return {
            "deprecatedAt": format_time(self.deprecated_at),
            "removalDate": format_time(self.removal_at),
            "successor": self.successor,
            "migrationGuide": self.migration_guide,
        }

    def build_headers(self) -> list[tuple[bytes, bytes]]:
        """Build the HTTP headers Deprecation (RFC 9745), Sunset (RFC 8594), and Link to the migration guide."""
        headers = []
        if self.deprecated_at is not None:
            headers.append((b"deprecation", b"@%d" % int(self.deprecated_at.timestamp())))
        if self.removal_at is not None:
            headers.append((b"sunset", format_datetime(self.removal_at.astimezone(UTC), usegmt=True).encode()))
        if self.migration_guide is not None:
            headers.append((b"link", f'<{self.migration_guide}>; rel="deprecation"'.encode("ascii", "replace")))
        return headers

    def describe(self, label: str) -> str:
        """Describe the deprecation in a sentence about the version."""
        until = "" if self.removal_at is None else f"; calls are refused from {format_time(self.removal_at)} on"
        instead = f"; use {self.successor} instead" if self.successor else ""
        return f"{label} is deprecated{until}{instead}"


def format_time(value: datetime | None) -> str | None:
    """Format a time in UTC, to the second."""
    return None if value is None else value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _parse_day(text: str | None) -> datetime | None:
    if text is None:
        return None
    day = date.fromisoformat(text)
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
