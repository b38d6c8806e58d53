"""Parse the times that commands take. A time without a zone is UTC, as everywhere in Deputize."""

from deputize.interfaces.cli.render.output import exit_with_error

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MAX_DIGITS = 9
# A hundred years, so that no time is before the first year.
_MAX_SECONDS = 36500 * _UNITS["d"]


def parse_time(text: str, option: str) -> str:
    """Parse `2h` before now, or a time or date in ISO 8601; without a zone it is UTC."""
    from datetime import UTC, datetime

    seconds = _parse_period(text)
    if seconds is not None:
        return _go_back(seconds)
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        exit_with_error(
            f"--{option} {text} is not a time: write 30m, 2h, 7d, 2026-11-16 or 2026-11-16T08:00:00Z; without a zone "
            "it is UTC."
        )


def parse_first_day(text: str, option: str) -> str:
    """Parse a time of which only the day counts: `7d` are seven days, of which today is the last."""
    seconds = _parse_period(text)
    if seconds and text[-1] in "dw":
        return _go_back(seconds - _UNITS["d"])
    return parse_time(text, option)


def _parse_period(text: str) -> int | None:
    """Parse a number and a unit as seconds; None if the text is something else, or too long ago."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isascii() or not number.isdecimal() or len(number) > _MAX_DIGITS:
        return None
    seconds = int(number) * _UNITS[unit]
    return seconds if seconds <= _MAX_SECONDS else None


def _go_back(seconds: int) -> str:
    from datetime import UTC, datetime, timedelta

    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
