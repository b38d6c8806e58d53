"""`deputize audit verify` says in words and by its exit code what a log is worth, and keeps what it verified."""

import json
from pathlib import Path

import pytest

from deputize.core.config_error import ConfigError
from deputize.evidence.log.log_walk import LogFault
from deputize.interfaces.cli.commands.audit.log import _print_verdict
from deputize.interfaces.cli.local.kept_checkpoints import (
    KeptCheckpoint,
    load_kept_checkpoint,
    locate_kept_checkpoint,
    save_kept_checkpoint,
)
from deputize.interfaces.cli.local.log_audit import LogVerdict
from deputize.interfaces.cli.render.output import CommandExit
from tests.support.memory_log import MemoryLog
from tests.support.receipts import LOG_SIGNER

pytestmark = pytest.mark.requirement("GOV-5")
FAULT = LogFault(first=41, last=41, reason="the entry is not what was signed")


def test_a_fault_names_the_entry_and_when_it_was_signed(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = LogVerdict(log="l", size=99, signed_at="2026-01-02T03:04:05+00:00", fault=FAULT, entry_id="an-id")
    with pytest.raises(CommandExit) as ending:
        _print_verdict(verdict, json=False)
    assert ending.value.code == 1
    output = capsys.readouterr().out
    assert output.startswith("NOT TRUSTED from entry 41 on (entry 41, id an-id): the entry is not what was signed.")
    assert "It was signed at 2026-01-02T03:04:05+00:00." in output


def test_a_fault_in_json_has_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = LogVerdict(log="l", size=99, signed_at=None, fault=FAULT)
    with pytest.raises(CommandExit):
        _print_verdict(verdict, json=True)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["trusted"], facts["first"], facts["last"], facts["reason"]) == (False, 41, 41, FAULT.reason)


def test_entries_outside_the_log_are_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = LogVerdict(log="l", size=99, signed_at=None, unlogged_entries=("an-id", "another-id"))
    with pytest.raises(CommandExit) as ending:
        _print_verdict(verdict, json=False)
    assert ending.value.code == 1
    output = capsys.readouterr().out
    assert "2 audit entries are not in the log" in output
    assert "another-id" in output


def test_a_backlog_is_a_failure_since_it_would_hide_entries_outside_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandExit) as ending:
        _print_verdict(LogVerdict(log="l", size=99, signed_at=None, has_backlog=True), json=False)
    assert ending.value.code == 1
    assert capsys.readouterr().out.startswith("NOT COMPLETE: entries from before the log are still queued")


def test_what_was_verified_is_kept_and_a_changed_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path, other_path = (locate_kept_checkpoint("https://gateway.example", tenant) for tenant in ("acme", "beta"))
    assert path != other_path
    assert load_kept_checkpoint(path) is None
    note = MemoryLog([b"a", b"b"], [2]).notes[2]
    save_kept_checkpoint(path, KeptCheckpoint(note=note, keys=[LOG_SIGNER.verifier_key]))
    kept = load_kept_checkpoint(path)
    assert kept is not None
    assert (kept.checkpoint.size, kept.keys) == (2, [LOG_SIGNER.verifier_key])
    original = path.read_text()
    for changed in (original.replace("acme\\n2\\n", "acme\\n1\\n"), original[:-20], "[]", "{}", ""):
        assert changed != original
        path.write_text(changed)
        with pytest.raises(ConfigError):
            load_kept_checkpoint(path)


@pytest.mark.parametrize(
    ("expired", "text"), [(1, "The first entry expired"), (1234, "The first 1,234 entries expired")]
)
def test_a_trusted_log_says_what_expired(capsys: pytest.CaptureFixture[str], expired: int, text: str) -> None:
    verdict = LogVerdict(log="l", size=9999, signed_at=None, expired_count=expired)
    _print_verdict(verdict, json=False)
    output = capsys.readouterr().out
    assert output.startswith("TRUSTED")
    assert text in output
    _print_verdict(verdict, json=True)
    assert json.loads(capsys.readouterr().out)["expired"] == expired
