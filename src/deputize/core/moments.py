"""Bound the times that come from outside, so that whatever is computed with them is a time, too."""

from datetime import UTC, datetime
from typing import Final

_FIRST: Final = datetime(1900, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)


def normalize_moment(at: datetime) -> datetime:
    """Convert a time with a zone to UTC, or raise ValueError if it is out of range."""
    try:
        moment = at.astimezone(UTC)
    except OverflowError:
        moment = None
    if moment is None or not _FIRST <= moment < _LAST:
        raise ValueError(f"must be a time from {_FIRST.year} to {_LAST.year - 1}, in UTC")
    return moment
