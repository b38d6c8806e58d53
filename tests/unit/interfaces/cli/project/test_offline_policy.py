"""How far to look back, as a person writes it."""

from datetime import UTC, datetime, timedelta

import pytest

from deputize.interfaces.cli.project.offline_policy import parse_since
from deputize.interfaces.cli.render.output import CommandExit


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("30d", timedelta(days=30)),
        ("12h", timedelta(hours=12)),
        ("45m", timedelta(minutes=45)),
        ("2w", timedelta(weeks=2)),
    ],
)
def test_a_number_and_a_unit_is_so_long_ago(text: str, ago: timedelta) -> None:
    found = datetime.fromisoformat(parse_since(text))

    assert abs(datetime.now(UTC) - ago - found) < timedelta(minutes=1)


def test_a_date_is_itself_and_utc_where_it_names_no_zone() -> None:
    assert parse_since("2026-11-01") == "2026-11-01T00:00:00+00:00"
    assert parse_since("2026-11-01T08:00:00+02:00") == "2026-11-01T08:00:00+02:00"


@pytest.mark.parametrize("text", ["", "d", "30", "x", "-3d", "30 days", "9999999999999d"])
def test_anything_else_says_how_to_write_it(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandExit):
        parse_since(text)
    assert "write 30d, 12h, 45m, or a date" in capsys.readouterr().err
