"""Send what costs a gateway most as one tenant's administrator, each kind at its own rate, without regard for refusals.

A process of its own, so that what it takes to send all this does not slow the measuring client down. Commands come in
as lines, each the seconds to send for; the answers, counted by kind and status, go out as lines.
"""

import asyncio
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from proofs.kit.http_client import HttpConnection
from proofs.kit.sandbox import Sandbox

if TYPE_CHECKING:
    from proofs.tenant_isolation.experiment import Testbed

ACTS_PER_SECOND, FAILURES_PER_SECOND, POLICIES_PER_SECOND, DEFINITIONS_PER_SECOND = 100.0, 40.0, 1.0, 1.0
RULES = 500
PROPERTIES = 4_000
_URL, _TOKEN = "PROOF_STORM_URL", "PROOF_STORM_TOKEN"


class Storm:
    """The storm's process, and the answers that it has got."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.statuses: Counter[str] = Counter()

    @classmethod
    async def start(cls, sandbox: Sandbox, url: str, token: str) -> "Storm":
        """Start the process, which waits for its first command."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "proofs.tenant_isolation.storm",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).resolve().parents[2], env={**os.environ, _URL: url, _TOKEN: token},
        )  # fmt: skip
        storm = cls(process)
        sandbox.add_cleanup(storm._stop)
        await storm._read_answers()
        return storm

    async def send_requests(self, testbed: "Testbed", seconds: float) -> None:
        """Send everything for some seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n".encode())
        await self._read_answers()

    async def _read_answers(self) -> None:
        assert self._process.stdout is not None
        self.statuses.update(json.loads(await self._process.stdout.readline()))

    async def _stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


class _HostileTenant:
    """The requests of the storm, built before it begins."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token
        self._numbers = itertools.count()
        self.statuses: Counter[str] = Counter()
        properties = {f"p{number}": {"type": "string", "description": "x" * 80} for number in range(PROPERTIES)}
        schema = {"type": "object", "properties": properties}
        self._definition = json.dumps({"name": "huge", "namespace": "gamma", "input_schema": schema}).encode()
        rules = "".join(
            f'@id("rSEED-{number}") forbid (principal == User::"uSEED-{number}", action, resource);\n'
            for number in range(RULES)
        )
        self._rules = json.dumps({"files": [{"path": "storm.cedar", "text": rules}]}).encode()

    async def attack(self, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        kinds: list[tuple[float, Callable[[HttpConnection], Awaitable[int]]]] = [
            (ACTS_PER_SECOND / 2, self.revoke),
            (ACTS_PER_SECOND / 2, self.revoke),
            (FAILURES_PER_SECOND, self.fail),
            (POLICIES_PER_SECOND, self.put_rules),
            (DEFINITIONS_PER_SECOND, self.define),
        ]
        await asyncio.gather(*(self._repeat(rate, act, ends_at) for rate, act in kinds))

    async def _repeat(self, rate: float, act: Callable[[HttpConnection], Awaitable[int]], ends_at: float) -> None:
        connection = HttpConnection.for_url(self._url, token=self._token)
        due = time.monotonic()
        while due < ends_at:
            await asyncio.sleep(max(due - time.monotonic(), 0))
            due = max(due + 1 / rate, time.monotonic() - 1)
            self.statuses[f"{act.__name__} {await act(connection)}"] += 1
        connection.close()

    async def revoke(self, connection: HttpConnection) -> int:
        value = {"kind": "token", "value": f"none-{next(self._numbers)}", "reason": "storm"}
        return (await connection.post("/v1/revocations", value)).status

    async def fail(self, connection: HttpConnection) -> int:
        return (await connection.post("/v1/calls", {"tool": "no.such_tool", "arguments": {}})).status

    async def put_rules(self, connection: HttpConnection) -> int:
        body = self._rules.replace(b"SEED", str(next(self._numbers)).encode())
        return (await connection.send("PUT", "/v1/policies", body=body)).status

    async def define(self, connection: HttpConnection) -> int:
        return (await connection.send("POST", "/v1/tools", body=self._definition)).status


def main() -> None:
    """Obey the commands, one after the other."""
    hostile = _HostileTenant(os.environ[_URL], os.environ[_TOKEN])
    print("{}", flush=True)
    for line in sys.stdin:
        hostile.statuses.clear()
        asyncio.run(hostile.attack(float(line)))
        print(json.dumps(hostile.statuses), flush=True)


if __name__ == "__main__":
    main()
