"""Times, as a person writes them for a command."""

from datetime import UTC, datetime, timedelta

import pytest

from deputize.interfaces.cli.client.times import parse_first_day, parse_time
from deputize.interfaces.cli.render.output import CommandExit


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("30d", timedelta(days=30)),
        ("12h", timedelta(hours=12)),
        ("45m", timedelta(minutes=45)),
        ("90s", timedelta(seconds=90)),
        ("2w", timedelta(weeks=2)),
    ],
)
def test_a_number_and_a_unit_is_so_long_ago(text: str, ago: timedelta) -> None:
    before = datetime.now(UTC)
    found = datetime.fromisoformat(parse_time(text, "since"))

    assert before - ago <= found <= datetime.now(UTC) - ago


def test_a_time_without_a_zone_is_utc_wherever_the_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")

    assert parse_time("2026-11-01", "since") == "2026-11-01T00:00:00+00:00"
    assert parse_time("2026-11-01T08:00:00", "from") == "2026-11-01T08:00:00+00:00"
    assert parse_time("2026-11-01T08:00:00+02:00", "to") == "2026-11-01T06:00:00+00:00"


@pytest.mark.parametrize(
    "text", ["", "d", "30", "x", "-3d", "30 days", "9999999999999d", "999999d", "²d", "0001-01-01T00:00+14:00"]
)
def test_anything_else_says_how_to_write_it(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandExit):
        parse_time(text, "since")
    assert "--since" in (message := capsys.readouterr().err)
    assert "write 30m, 2h, 7d, 2026-11-16 or" in message


@pytest.mark.parametrize(("text", "days_before_today"), [("1d", 0), ("7d", 6), ("2w", 13), ("0d", 0)])
def test_days_are_counted_with_today(text: str, days_before_today: int) -> None:
    before = datetime.now(UTC)
    found = datetime.fromisoformat(parse_first_day(text, "since"))

    ago = timedelta(days=days_before_today)
    assert before - ago <= found <= datetime.now(UTC) - ago


def test_a_first_day_can_be_a_date_or_hours_ago() -> None:
    assert parse_first_day("2026-11-01", "since") == "2026-11-01T00:00:00+00:00"
    before = datetime.now(UTC)
    found = datetime.fromisoformat(parse_first_day("12h", "since"))
    assert before - timedelta(hours=12) <= found <= datetime.now(UTC) - timedelta(hours=12)
