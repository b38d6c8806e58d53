"""Test which settings a development gateway starts with: those of the file, or those that were confirmed last."""

from pathlib import Path

import pytest

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.edit_loop import terminal_keys
from deputize.interfaces.cli.local.edit_loop.confirmed_settings import choose_settings, record_settings

CONFIRMED_FILE = "confirmed-settings.toml"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without a terminal, whose settings were confirmed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(terminal_keys.TerminalKeys, "begin", lambda self: False)
    write_settings(tmp_path, 900)
    record_settings(tmp_path / ".deputize", (tmp_path / "deputize.toml").read_bytes())
    return tmp_path


def write_settings(folder: Path, seconds: int, more: str = "") -> None:
    (folder / "deputize.toml").write_text(f"[approvals]\nfresh_seconds = {seconds}\n{more}")


def choose_seconds(folder: Path, *, is_confirmed: bool = False) -> int:
    return choose_settings(folder / ".deputize", is_confirmed=is_confirmed).settings.approvals.fresh_seconds


def test_a_first_start_takes_the_file_and_records_it_when_it_is_ready(project: Path) -> None:
    (project / ".deputize" / CONFIRMED_FILE).unlink()
    write_settings(project, 60)
    start = choose_settings(project / ".deputize", is_confirmed=False)
    assert start.settings.approvals.fresh_seconds == 60
    assert start.content_to_record == (project / "deputize.toml").read_bytes()
    # Killed before it was ready, the next start is the first one again.
    assert not (project / ".deputize" / CONFIRMED_FILE).exists()


def test_without_a_terminal_other_settings_are_left(project: Path) -> None:
    write_settings(project, 60)
    assert choose_seconds(project) == 900
    assert choose_seconds(project) == 900
    assert choose_seconds(project, is_confirmed=True) == 60


def test_a_port_and_the_level_of_logs_are_taken_and_recorded(project: Path) -> None:
    write_settings(project, 900, '[server]\nport = 8123\n[telemetry]\nlog_level = "debug"\n')
    assert choose_settings(project / ".deputize", is_confirmed=False).settings.server.port == 8123
    assert (project / ".deputize" / CONFIRMED_FILE).read_bytes() == (project / "deputize.toml").read_bytes()
    # Beside another one, a port waits too: one file is confirmed as a whole.
    write_settings(project, 60, "[server]\nport = 9123\n")
    assert choose_settings(project / ".deputize", is_confirmed=False).settings.server.port == 8123


def test_the_environment_overrides_both_and_is_not_asked_about(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPUTIZE_APPROVALS__FRESH_SECONDS", "77")
    assert choose_seconds(project) == 77
    write_settings(project, 60)
    assert choose_seconds(project) == 77
    monkeypatch.delenv("DEPUTIZE_APPROVALS__FRESH_SECONDS")
    # What the environment hid was not confirmed by starting under it.
    assert choose_seconds(project) == 900


def test_the_record_is_private_and_what_cannot_be_read_any_more_stops_the_start(project: Path) -> None:
    record = project / ".deputize" / CONFIRMED_FILE
    assert record.stat().st_mode & 0o777 == 0o600
    record.write_text("[no_such_table]\nx = 1\n")
    with pytest.raises(ConfigError, match="--accept-changes"):
        choose_seconds(project)
    assert choose_seconds(project, is_confirmed=True) == 900
