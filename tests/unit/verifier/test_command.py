"""`deputize-verify` says whether a receipt is valid, exits accordingly, and has no traceback for any file."""

import json
import random
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from checks.verifier import write_archive
from deputize.evidence.log.checkpoint import get_witness_key
from deputize_verify.__main__ import main
from tests.support.receipts import LOG_SIGNER, WITNESS_TIME, make_receipt, make_witness

pytestmark = pytest.mark.requirement("NEW-1")
KEY = str(LOG_SIGNER.verifier_key)
# Runs an archive as `python FILE` does, and says which modules it loaded from outside: the gateway's must not be there.
_RUN_ALONE = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    assert not [name for name in sys.modules if name.partition(".")[0] == "deputize"]
"""
ENTRY = orjson.dumps({"caller": ["ana"], "kind": "outcome", "outcome": "succeeded", "tool": "a.b"})


@pytest.fixture
def receipt(tmp_path: Path) -> Path:
    path = tmp_path / "call.receipt"
    path.write_bytes(make_receipt(ENTRY))
    return path


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(arguments)
    except SystemExit as ending:
        code = int(ending.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_valid_receipt_says_what_it_proves(receipt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.key").write_text(f"{KEY}\n")
    for key in (KEY, str(tmp_path / "log.key")):
        code, output, _ = _run(capsys, str(receipt), "--key", key)
        assert code == 0
        assert output.startswith("VALID: the log gateway.example/log/acme signed this as entry 1 of the first 2.\n")
        assert "succeeded" in output
        assert "a.b" in output
    code, output, _ = _run(capsys, str(receipt), "--key", KEY, "--json")
    verdict = json.loads(output)
    assert (code, verdict["valid"], verdict["index"], verdict["size"]) == (0, True, 1, 2)
    assert verdict["entry"] == orjson.loads(ENTRY)


def test_every_changed_byte_is_refused(receipt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Change each byte in turn: whatever it was, the receipt is refused in words, and never with a traceback."""
    content = receipt.read_bytes()
    assert len(content) > 300
    for place in range(len(content)):
        receipt.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        code, output, _ = _run(capsys, str(receipt), "--key", KEY)
        assert code == 1, f"byte {place} was changed, and the receipt is still valid"
        assert output.startswith("NOT VALID: ")


def test_files_that_are_no_receipts_are_refused(receipt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = receipt.read_bytes()
    chance = random.Random(7)  # the same files in every run
    files = [b"", b"\n\n", b"\xff" * 100, content[:-1], content + b"\n", chance.randbytes(5000), b"[" * 200_000]
    files += [content[: chance.randrange(len(content))] for _ in range(50)]
    files.append(make_receipt(b"[" * 60_000))
    files.append(make_receipt(b"[1]"))
    for file in files:
        receipt.write_bytes(file)
        code, output, _ = _run(capsys, str(receipt), "--key", KEY, "--json")
        assert (code, json.loads(output)["valid"]) == (1, False)


def test_an_entry_cannot_steer_the_terminal(receipt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    receipt.write_bytes(make_receipt(orjson.dumps({"tool": "\x1b[2Jcleared\u202e"})))
    code, output, _ = _run(capsys, str(receipt), "--key", KEY)
    assert code == 0
    assert "\x1b" not in output
    assert "\u202e" not in output


def test_all_witnesses_or_as_many_as_are_asked_for_must_have_cosigned(
    receipt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, absent = (make_witness(number) for number in (2, 3, 4))
    receipt.write_bytes(make_receipt(ENTRY, [first, second]))
    keys = [str(get_witness_key(each)) for each in (first, second, absent)]
    options = [option for key in keys for option in ("--witness", key)]

    code, output, _ = _run(capsys, str(receipt), "--key", KEY, *options[:4], "--json")
    assert (code, json.loads(output)["cosigned_at"]) == (0, {first.name: WITNESS_TIME, second.name: WITNESS_TIME})
    code, output, _ = _run(capsys, str(receipt), "--key", KEY, *options)
    assert code == 1
    assert "2 of at least 3 witnesses cosigned it: not witness.example/4" in output
    code, output, _ = _run(capsys, str(receipt), "--key", KEY, *options, "--threshold", "2")
    assert code == 0
    assert "by the witness witness.example/2 at 2023-11-14T22:13:20Z" in output
    # The same witness, named twice, counts once.
    code, _, _ = _run(capsys, str(receipt), "--key", KEY, *options[:2], *options[:2], "--threshold", "2")
    assert code == 2


def test_a_cosignature_of_another_time_is_refused(receipt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    witness = make_witness(2)
    at_first, later = make_receipt(ENTRY, [witness]), make_receipt(ENTRY, [witness], unix_time=WITNESS_TIME + 1)
    key = str(get_witness_key(witness))
    for content, expected in ((at_first, 0), (later, 0), (at_first[:-60] + later[-60:], 1)):
        receipt.write_bytes(content)
        assert _run(capsys, str(receipt), "--key", KEY, "--witness", key)[0] == expected
    # A time at which no calendar ends is printed, not raised.
    receipt.write_bytes(make_receipt(ENTRY, [witness], unix_time=(1 << 63) - 1))
    assert _run(capsys, str(receipt), "--key", KEY, "--witness", key)[0] == 0


def test_what_cannot_be_read_is_named_and_exits_with_2(
    receipt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "large").write_bytes(b"x" * 1_000_001)
    witness_key = str(get_witness_key(make_witness(2)))
    for arguments in (
        (str(tmp_path / "missing"), "--key", KEY),
        (str(tmp_path), "--key", KEY),
        (str(tmp_path / "large"), "--key", KEY),
        ("nul\0byte", "--key", KEY),
        (str(receipt), "--key", f"{KEY}x"),
        (str(receipt), "--key", "é+\0+"),
        (str(receipt), "--key", str(tmp_path / "empty")),
        (str(receipt), "--key", str(tmp_path / "large")),
        (str(receipt), "--key", witness_key),
        (str(receipt), "--key", KEY, "--witness", KEY),
        (str(receipt), "--key", KEY, "--threshold", "1"),
        (str(receipt), "--key", KEY, "--witness", witness_key, "--threshold", "0"),
        (str(receipt),),
    ):
        code, output, errors = _run(capsys, *arguments)
        assert (code, output) == (2, ""), arguments
        assert "deputize-verify" in errors


def test_one_file_verifies_without_anything_of_this_project(receipt: Path, tmp_path: Path) -> None:
    archive = tmp_path / "deputize-verify.pyz"
    write_archive(archive)
    # Isolated: neither the folder nor the environment can give it a module of the project.
    command = [sys.executable, "-I", "-c", _RUN_ALONE, str(archive), str(receipt), "--key", KEY]
    for code, words in ((0, "VALID: "), (1, "NOT VALID: ")):
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == code, result.stderr
        assert result.stdout.startswith(words)
        receipt.write_bytes(receipt.read_bytes()[:-1])
