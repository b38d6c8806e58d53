"""Get receipts from the gateways, and have them verified by a program in Go that shares no code with ours."""

import asyncio
import base64
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from proofs.audit_tamper.testbed import Testbed
from proofs.kit.http_client import HttpConnection
from tests.support.witness.witness_process import build_program

_SOURCE = Path(__file__).with_name("receipts.go")
_CONNECTIONS = 4
_PAUSE_SECONDS = 0.2
_TIMEOUT_SECONDS = 900.0
# Not signed yet, too many at once, or the database was killed a moment ago.
_RETRIED = (409, 429, 503)


async def save_receipts(testbed: Testbed, entry_ids: Sequence[str], folder: Path) -> None:
    """Get the receipts of these entries over HTTP, in turn from all gateways, and write them to files."""
    folder.mkdir()
    waiting, token = iter(entry_ids), testbed.auditor_token
    async with asyncio.timeout(_TIMEOUT_SECONDS), asyncio.TaskGroup() as group:
        for number in range(_CONNECTIONS):
            url = testbed.gateways[number % len(testbed.gateways)].url
            group.create_task(_save_in_turn(url, token, waiting, folder))


async def verify_receipts(testbed: Testbed, folder: Path) -> tuple[int, int, str]:
    """Count those that the program finds valid, those that it does not, and get the reason of the first of these."""
    program = await asyncio.to_thread(build_program, _SOURCE)
    command = [str(program), "-log", str(testbed.log_keys[0]), "-witness", str(testbed.witness.key), str(folder)]
    result = await testbed.sandbox.run_command(command)
    if result.code:
        raise RuntimeError(f"the program in Go failed: {result.stderr}")
    valid, invalid, reason = result.stdout.rstrip("\n").split(" ", 2)
    return int(valid), int(invalid), reason


def change_receipts(folder: Path, changed_folder: Path, rng: random.Random) -> None:
    """Copy receipts, and flip one bit of the entry that each is about."""
    changed_folder.mkdir()
    for file in folder.iterdir():
        first, extra, rest = file.read_text().split("\n", 2)
        entry = bytearray(base64.b64decode(extra.removeprefix("extra ")))
        entry[rng.randrange(len(entry))] ^= 1 << rng.randrange(8)
        text = f"{first}\nextra {base64.b64encode(entry).decode()}\n{rest}"
        (changed_folder / file.name).write_text(text)


async def _save_in_turn(url: str, token: str, entry_ids: Iterator[str], folder: Path) -> None:
    http = HttpConnection.for_url(url, token=token)
    for entry_id in entry_ids:
        while (answer := await http.get(f"/v1/audit/{entry_id}/receipt")).status in _RETRIED:  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_SECONDS)
        if answer.status != 200:
            raise RuntimeError(f"entry {entry_id} has no receipt: {answer.status} {answer.body[:300]!r}")
        (folder / f"{entry_id}.receipt").write_text(answer.json()["receipt"])
    http.close()
