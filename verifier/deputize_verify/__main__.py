"""Define the command `deputize-verify`."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, NoReturn

from deputize_verify.log.merkle_tree import InvalidProof
from deputize_verify.log.receipt_check import check_receipt, describe_receipt, parse_log_keys, parse_witness_keys
from deputize_verify.log.signed_note import MAX_NOTE_SIZE, InvalidNote, VerifierKey

EXIT_NOT_VALID: Final = 1
EXIT_USAGE: Final = 2
_MAX_KEY_BYTES: Final = 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify the receipt that the command line names, print the verdict and return the exit code."""
    options = _build_parser().parse_args(arguments)
    log_keys = _read_keys(options.key, parse_log_keys)
    witness_keys = [key for each in options.witness for key in _read_keys(each, parse_witness_keys)]
    if options.threshold is not None and not 1 <= options.threshold <= len({key.name for key in witness_keys}):
        _exit_with_error("--threshold is at least 1, and at most the number of witnesses that --witness names.")
    content = _read_file(options.file, MAX_NOTE_SIZE)
    try:
        receipt = check_receipt(content, log_keys, witness_keys, threshold=options.threshold)
    except (InvalidNote, InvalidProof) as error:
        verdict = {"valid": False, "reason": str(error)}
        lines = [f"NOT VALID: {error}. Do not rely on this receipt."]
    else:
        verdict = {"valid": True, **asdict(receipt)}
        lines = describe_receipt(receipt)
    _print_lines([json.dumps(verdict)] if options.json else lines)
    return 0 if verdict["valid"] else EXIT_NOT_VALID


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deputize-verify",
        description="Verify a receipt of a Deputize gateway offline, and say what it proves.",
        epilog="Exits with 0 if the receipt is valid, 1 if it is not, 2 if a file or key cannot be read.",
    )
    parser.add_argument("file", metavar="FILE", help="the receipt")
    parser.add_argument("--key", required=True, metavar="KEY", help="the key of the log, or a file with its keys")
    parser.add_argument(
        "--witness",
        action="append",
        default=[],
        metavar="KEY",
        help="the key of a witness that must have cosigned, or a file with keys; may be repeated",
    )
    parser.add_argument(
        "--threshold", type=int, metavar="N", help="how many of the witnesses must have cosigned: all, unless given"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _read_keys(key: str, parse_keys: Callable[[str], list[VerifierKey]]) -> list[VerifierKey]:
    is_text = "+" in key and not _is_file(key)
    text = key if is_text else _read_file(key, _MAX_KEY_BYTES).decode(errors="replace")
    try:
        keys = parse_keys(text)
    except InvalidNote as error:
        _exit_with_error(f"The key cannot be read: {error}. Get it again from the operator of the log or witness.")
    if not keys:
        _exit_with_error(f"There is no key in {key!r}: write it there as its operator gave it to you.")
    return keys


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def _read_file(path: str, limit: int) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:
        _exit_with_error(f"{path!r} cannot be read: {getattr(error, 'strerror', None) or error}.")
    if len(content) > limit:
        _exit_with_error(f"{path!r} has more than {limit:,} bytes: it is no receipt or key.")
    return content


def _exit_with_error(message: str) -> NoReturn:
    sys.stderr.write(f"deputize-verify: {message}\n")
    raise SystemExit(EXIT_USAGE)


def _print_lines(lines: Sequence[str]) -> None:
    # A terminal that cannot show a letter gets an escape for it, not a traceback.
    encoding = sys.stdout.encoding or "utf-8"
    text = "".join(f"{line}\n" for line in lines)
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
