"""`deputize verify` needs a receipt and a key, and says in words whether and what the receipt proves."""

from pathlib import Path

import orjson
import pytest

from deputize.core.config_error import ConfigError
from deputize.evidence.log.checkpoint import get_witness_key
from deputize.interfaces.cli.commands.service.receipt import verify
from deputize.interfaces.cli.render.output import CommandExit
from tests.support.receipts import LOG_SIGNER, make_receipt, make_witness

pytestmark = pytest.mark.requirement("NEW-1")
ENTRY = {
    "caller": ["ana"],
    "kind": "outcome",
    "outcome": "succeeded",
    "time": "2026-01-02T03:04:05Z",
    "tool": "a.b",
}


def _make_receipt(entry: bytes, path: Path) -> Path:
    path.write_bytes(make_receipt(entry))
    return path


def test_a_valid_receipt_says_who_did_what_and_when(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    receipt = _make_receipt(orjson.dumps(ENTRY), tmp_path / "receipt")
    (tmp_path / "keys").write_text(f"\n{LOG_SIGNER.verifier_key}\n")
    for key in (str(LOG_SIGNER.verifier_key), str(tmp_path / "keys")):
        verify(receipt, key)
        output = capsys.readouterr().out
        assert output.startswith("VALID: the log gateway.example/log/acme signed this as entry 1 of the first 2.")
        for value in ("ana", "a.b", "succeeded", "2026-01-02T03:04:05Z"):
            assert value in output


def test_an_entry_too_large_for_a_bundle_is_verified_by_its_digest(tmp_path: Path) -> None:
    large = orjson.dumps({**ENTRY, "rules": ["x" * 70_000]})
    verify(_make_receipt(large, tmp_path / "receipt"), str(LOG_SIGNER.verifier_key))


@pytest.mark.parametrize(("old", "new"), [(b"index 1", b"index 0"), (b"\n2\n", b"\n3\n"), (b"tlog-proof", b"tlog-x")])
def test_a_changed_receipt_is_not_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: bytes, new: bytes
) -> None:
    receipt = _make_receipt(orjson.dumps(ENTRY), tmp_path / "receipt")
    content = receipt.read_bytes()
    assert old in content
    receipt.write_bytes(content.replace(old, new))
    with pytest.raises(CommandExit) as ending:
        verify(receipt, str(LOG_SIGNER.verifier_key))
    assert ending.value.code == 1
    assert capsys.readouterr().out.startswith("NOT VALID: ")


def test_a_file_or_key_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    receipt = _make_receipt(orjson.dumps(ENTRY), tmp_path / "receipt")
    for path, key in (
        (tmp_path / "missing", str(LOG_SIGNER.verifier_key)),
        (receipt, str(tmp_path / "no.key")),
        (receipt, f"{LOG_SIGNER.verifier_key}x"),
    ):
        with pytest.raises(ConfigError):
            verify(path, key)


def test_witnesses_must_have_cosigned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    witness, absent = make_witness(2), make_witness(3)
    receipt = tmp_path / "receipt"
    receipt.write_bytes(make_receipt(orjson.dumps(ENTRY), [witness]))
    key, keys = str(LOG_SIGNER.verifier_key), [str(get_witness_key(each)) for each in (witness, absent)]
    verify(receipt, key, witness=keys[:1])
    assert "by the witness witness.example/2" in capsys.readouterr().out
    verify(receipt, key, witness=keys, threshold=1)
    capsys.readouterr()
    with pytest.raises(CommandExit) as ending:
        verify(receipt, key, witness=keys)
    assert ending.value.code == 1
    assert "not witness.example/3" in capsys.readouterr().out
    with pytest.raises(CommandExit) as ending:
        verify(receipt, key, witness=keys, threshold=3)
    assert ending.value.code == 2
