"""The processes beside a gateway in a proof: the echo it is compared with, the ledger it acts upon.

Above: proofs. Below: `world`, which runs them; `echo` and `ledger`, which they are.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx2

from proofs.kit.child import Child
from proofs.kit.ledger import ArmRequest, Effect, EffectPoint
from proofs.kit.serving import READY
from proofs.kit.world import World

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """What the ledger knows of one key."""

    happened: bool
    sequences: tuple[int, ...]
    attempts: int


class LedgerHandle:
    """The ledger process and its API. Tools inside a gateway POST to `url` themselves."""

    def __init__(self, world: World, child: Child, url: str, file: Path, delay_ms: int) -> None:
        self.url = url
        self.child = child
        self._world = world
        self._file = file
        self._delay_ms = delay_ms
        self._client = httpx2.AsyncClient(base_url=url, trust_env=False, timeout=30.0)

    async def effect(
        self, key: str, *, tool: str = "t", call: str = "", dedupe: bool = False, delay_ms: int | None = None
    ) -> int:
        """Ask for one effect and return its sequence."""
        asked = {"key": key, "tool": tool, "call": call, "dedupe": dedupe, "delay_ms": delay_ms}
        response = await self._client.post("/effect", json=asked)
        return int(response.raise_for_status().json()["sequence"])

    async def effects(self) -> list[Effect]:
        answer = (await self._client.get("/effects")).raise_for_status().json()
        return [Effect.model_validate(each) for each in answer["effects"]]

    async def attempts(self) -> dict[str, int]:
        """How often each key was asked for, repeated and killed attempts included."""
        answer = (await self._client.get("/effects")).raise_for_status().json()
        return {str(key): int(count) for key, count in answer["attempts"].items()}

    async def status(self, key: str) -> Status:
        known = (await self._client.get("/status", params={"key": key})).raise_for_status().json()
        return Status(happened=known["happened"], sequences=tuple(known["sequences"]), attempts=known["attempts"])

    async def arm(self, point: EffectPoint, pid: int, match: dict[str, str] | None = None) -> None:
        """SIGKILL the pid around the next effect whose fields (key, tool, call) equal those of `match`.

        `during_effect`: the request is there in full, and the effect happens once its delay is over.
        `before_effect`: the effect then does not happen. `after_effect`: it has, and no answer arrives.
        """
        request = ArmRequest(point=point, pid=pid, match=match or {})
        (await self._client.post("/arm", json=request.model_dump())).raise_for_status()

    async def fired(self) -> int:
        """How many armed kills have been carried out."""
        return len((await self._client.get("/arm")).raise_for_status().json()["fired"])

    async def restart(self) -> Self:
        """SIGKILL the ledger and start it again on its file and port."""
        self.child.kill()
        await self.child.gone()
        port = int(self.url.rpartition(":")[2])
        self.child = await _start_ledger(self._world, self._file, delay_ms=self._delay_ms, port=port)
        return self

    async def close(self) -> None:
        await self._client.aclose()


async def start_ledger(world: World, *, delay_ms: int = 0, name: str = "ledger") -> LedgerHandle:
    """A ledger with its own process and file; `delay_ms` slows every effect that does not say otherwise."""
    file = world.folder / f"{name}.jsonl"
    child = await _start_ledger(world, file, delay_ms=delay_ms)
    handle = LedgerHandle(world, child, await _address(child), file, delay_ms)
    world.at_end(handle.close)
    return handle


async def start_echo(world: World) -> str:
    """The raw ASGI echo in a process of its own; returns its base URL."""
    child = await world.start("echo", [sys.executable, "-m", "proofs.kit.echo"], cwd=_ROOT, ready_line=READY)
    return await _address(child)


async def start_sink(world: World, *, keep: Path | None = None) -> str:
    """A collector of spans that keeps none, or all in a file; returns its base URL."""
    argv = [sys.executable, "-m", "proofs.kit.sink", *(("--keep", str(keep)) if keep else ())]
    child = await world.start("sink", argv, cwd=_ROOT, ready_line=READY)
    return await _address(child)


async def start_upstream(world: World, folder: Path, *, trust: str, audience: str) -> str:
    """The system tools act upon with credentials; it writes what it received into `folder`. Returns its base URL."""
    folder.mkdir()
    argv = [sys.executable, "-m", "proofs.kit.upstream", "--folder", str(folder)]
    argv += ["--trust", trust, "--audience", audience]
    child = await world.start("upstream", argv, cwd=_ROOT, ready_line=READY)
    return await _address(child)


async def _start_ledger(world: World, file: Path, *, delay_ms: int, port: int = 0) -> Child:
    argv = [sys.executable, "-m", "proofs.kit.ledger"]
    argv += ["--file", str(file), "--port", str(port), "--delay-ms", str(delay_ms)]
    return await world.start("ledger", argv, cwd=_ROOT, ready_line=READY)


async def _address(child: Child) -> str:
    return (await child.line(READY)).partition(READY)[2].strip()
