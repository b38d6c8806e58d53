"""The processes beside a gateway in a proof: the echo it is compared with, the ledger it acts upon."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx2

from proofs.kit.asgi_server import READY
from proofs.kit.child_process import ChildProcess
from proofs.kit.ledger import ArmRequest, Effect, EffectPoint
from proofs.kit.sandbox import Sandbox

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectStatus:
    """What the ledger knows of one key."""

    has_happened: bool
    sequences: tuple[int, ...]
    attempts: int


class LedgerHandle:
    """The ledger process and its API. Tools inside a gateway POST to `url` themselves."""

    def __init__(self, sandbox: Sandbox, child: ChildProcess, url: str, file: Path, delay_ms: int) -> None:
        self.url = url
        self.child = child
        self._world = sandbox
        self._file = file
        self._delay_ms = delay_ms
        self._client = httpx2.AsyncClient(base_url=url, trust_env=False, timeout=120.0)

    async def request_effect(
        self, key: str, *, tool: str = "t", call: str = "", dedupe: bool = False, delay_ms: int | None = None
    ) -> int:
        """Ask for one effect and return its sequence."""
        body = {"key": key, "tool": tool, "call": call, "dedupe": dedupe, "delay_ms": delay_ms}
        response = await self._client.post("/effect", json=body)
        return int(response.raise_for_status().json()["sequence"])

    async def list_effects(self) -> list[Effect]:
        answer = (await self._client.get("/effects")).raise_for_status().json()
        return [Effect.model_validate(each) for each in answer["effects"]]

    async def count_attempts(self) -> dict[str, int]:
        """How often each key was asked for, repeated and killed attempts included."""
        answer = (await self._client.get("/effects")).raise_for_status().json()
        return {str(key): int(count) for key, count in answer["attempts"].items()}

    async def get_status(self, key: str) -> EffectStatus:
        status_json = (await self._client.get("/status", params={"key": key})).raise_for_status().json()
        return EffectStatus(
            has_happened=status_json["happened"],
            sequences=tuple(status_json["sequences"]),
            attempts=status_json["attempts"],
        )

    async def arm_kill(self, point: EffectPoint, pid: int, match: dict[str, str] | None = None) -> None:
        """SIGKILL the pid around the next effect whose fields (key, tool, call) equal those of `match`.

        `during_effect`: the request is there in full, and the effect happens once its delay is over.
        `before_effect`: the effect then does not happen. `after_effect`: it has, and no answer arrives.
        """
        request = ArmRequest(point=point, pid=pid, match=match or {})
        (await self._client.post("/arm", json=request.model_dump())).raise_for_status()

    async def count_fired_kills(self) -> int:
        """How many armed kills have been carried out."""
        return len((await self._client.get("/arm")).raise_for_status().json()["fired"])

    async def restart(self) -> Self:
        """SIGKILL the ledger and start it again on its file and port."""
        self.child.kill()
        await self.child.wait_for_exit()
        port = int(self.url.rpartition(":")[2])
        self.child = await _start_ledger_process(self._world, self._file, delay_ms=self._delay_ms, port=port)
        return self

    async def close(self) -> None:
        await self._client.aclose()


async def start_ledger(sandbox: Sandbox, *, delay_ms: int = 0, name: str = "ledger") -> LedgerHandle:
    """A ledger with its own process and file; `delay_ms` slows every effect that does not say otherwise."""
    file = sandbox.folder / f"{name}.jsonl"
    child = await _start_ledger_process(sandbox, file, delay_ms=delay_ms)
    handle = LedgerHandle(sandbox, child, await _read_address(child), file, delay_ms)
    sandbox.add_cleanup(handle.close)
    return handle


async def start_echo(sandbox: Sandbox) -> str:
    """The raw ASGI echo in a process of its own; returns its base URL."""
    child = await sandbox.start_process(
        "echo", [sys.executable, "-m", "proofs.kit.echo_server"], cwd=_ROOT, ready_line=READY
    )
    return await _read_address(child)


async def start_sink(sandbox: Sandbox, *, keep: Path | None = None, name: str = "sink") -> str:
    """A collector of spans, or of anything that is posted, that keeps none, or all in a file; returns its base URL."""
    argv = [sys.executable, "-m", "proofs.kit.span_collector", *(("--keep", str(keep)) if keep else ())]
    child = await sandbox.start_process(name, argv, cwd=_ROOT, ready_line=READY)
    return await _read_address(child)


async def start_upstream(sandbox: Sandbox, folder: Path, *, trust: str, audience: str) -> str:
    """The system tools act upon with credentials; it writes what it received into `folder`. Returns its base URL."""
    folder.mkdir()
    argv = [sys.executable, "-m", "proofs.kit.upstream_server", "--folder", str(folder)]
    argv += ["--trust", trust, "--audience", audience]
    child = await sandbox.start_process("upstream", argv, cwd=_ROOT, ready_line=READY)
    return await _read_address(child)


async def _start_ledger_process(sandbox: Sandbox, file: Path, *, delay_ms: int, port: int = 0) -> ChildProcess:
    argv = [sys.executable, "-m", "proofs.kit.ledger"]
    argv += ["--file", str(file), "--port", str(port), "--delay-ms", str(delay_ms)]
    return await sandbox.start_process("ledger", argv, cwd=_ROOT, ready_line=READY)


async def _read_address(child: ChildProcess) -> str:
    return (await child.wait_for_line(READY)).partition(READY)[2].strip()
