"""The effect ledger: an upstream in a process of its own that remembers every effect it was asked for.

POST /effect  {"key", "tool", "call", "dedupe", "delay_ms"}   one effect, or the first answer again
GET  /effects                                                 every effect, and the attempts per key
GET  /status?key=K                                            what is known of one key
POST /arm     {"point", "pid", "match"}                       SIGKILL that pid around one matching effect
GET  /arm                                                     what is armed and what has fired
"""

import argparse
import asyncio
import os
import select
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from proofs.kit.asgi_server import Receive, Scope, Send, read_body, send_json, serve_app

EffectPoint = Literal["during_effect", "before_effect", "after_effect"]
_FATAL_SECONDS = 10.0


class EffectRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    tool: str
    call: str
    dedupe: bool = False
    delay_ms: int | None = None


class ArmRequest(BaseModel):
    """`match` holds fields of an effect (key, tool, call) that must be equal; empty matches any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    point: EffectPoint
    pid: int
    match: dict[str, str] = {}

    def is_match_for(self, effect: EffectRequest) -> bool:
        return all(getattr(effect, name, None) == value for name, value in self.match.items())


class Effect(BaseModel):
    """One effect that happened, and when by this process's clock, in seconds."""

    model_config = ConfigDict(frozen=True)

    sequence: int
    key: str
    tool: str
    call: str
    at: float = 0.0


class EffectLog:
    """The ledger's truth: lines of a file, each on disk before it counts."""

    def __init__(self, path: Path) -> None:
        self.effects: list[Effect] = []
        self.attempts: Counter[str] = Counter()
        self._first: dict[str, Effect] = {}
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        lines, _, partial_line = path.read_bytes().rpartition(b"\n")
        if partial_line:  # a line cut short by a crash was never answered: it did not happen
            os.ftruncate(self._file, os.fstat(self._file).st_size - len(partial_line))
        for line in lines.splitlines():
            record = orjson.loads(line)
            self.attempts[record["key"]] += 1
            if "sequence" in record:
                self._remember(Effect.model_validate(record))
        _sync_folder(path.parent)

    def find_first(self, key: str) -> Effect | None:
        return self._first.get(key)

    def record_attempt(self, key: str) -> None:
        """Record that the key was asked for, and nothing else happened."""
        self._append_line({"key": key})
        self.attempts[key] += 1

    def append_effect(self, request: EffectRequest) -> Effect:
        effect = Effect(
            sequence=len(self.effects) + 1, key=request.key, tool=request.tool, call=request.call, at=time.time()
        )  # fmt: skip
        self._append_line(effect.model_dump())
        self.attempts[effect.key] += 1
        self._remember(effect)
        return effect

    def _remember(self, effect: Effect) -> None:
        self.effects.append(effect)
        self._first.setdefault(effect.key, effect)

    def _append_line(self, record: dict[str, object]) -> None:
        os.write(self._file, orjson.dumps(record) + b"\n")
        os.fsync(self._file)


class LedgerApp:
    """The book behind an ASGI app; no await stands between a decision and its line, so they cannot race."""

    def __init__(self, effect_log: EffectLog, delay_ms: int = 0) -> None:
        self._effect_log = effect_log
        self._delay_ms = delay_ms
        self._pending_kills: list[ArmRequest] = []
        self._fired_kills: list[ArmRequest] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = f"{scope['method']} {scope['path']}"
        body = await read_body(receive)
        try:
            status, content = await self._handle_request(route, scope["query_string"], body)
        except ValidationError as error:
            status, content = 422, {"error": error.errors(include_url=False, include_input=False)}
        await send_json(send, status, orjson.dumps(content))

    async def _handle_request(self, route: str, query: bytes, body: bytes) -> tuple[int, object]:
        if route == "POST /effect":
            return await self._handle_effect(EffectRequest.model_validate_json(body))
        if route == "POST /arm":
            self._pending_kills.append(ArmRequest.model_validate_json(body))
            return 200, {"armed": len(self._pending_kills)}
        if route == "GET /arm":
            return 200, {
                "armed": [each.model_dump() for each in self._pending_kills],
                "fired": [each.model_dump() for each in self._fired_kills],
            }
        if route == "GET /effects":
            effects = [effect.model_dump() for effect in self._effect_log.effects]
            return 200, {"effects": effects, "attempts": dict(self._effect_log.attempts)}
        if route == "GET /status":
            return self._build_status(parse_qs(query.decode()).get("key", [""])[0])
        return 404, {"error": f"no route {route}"}

    async def _handle_effect(self, request: EffectRequest) -> tuple[int, object]:
        # It has the request in full: what follows happens whether or not the caller lives.
        self._fire_kill("during_effect", request)
        delay_ms = self._delay_ms if request.delay_ms is None else request.delay_ms
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        first = self._effect_log.find_first(request.key) if request.dedupe else None
        if first is not None:
            self._effect_log.record_attempt(request.key)
            return 200, {"sequence": first.sequence, "key": first.key}
        if self._fire_kill("before_effect", request):
            self._effect_log.record_attempt(request.key)
            return 503, {"error": "the caller was ended before the effect"}
        effect = self._effect_log.append_effect(request)
        self._fire_kill("after_effect", request)
        return 200, {"sequence": effect.sequence, "key": effect.key}

    def _build_status(self, key: str) -> tuple[int, object]:
        sequences = [effect.sequence for effect in self._effect_log.effects if effect.key == key]
        return 200, {
            "key": key,
            "happened": bool(sequences),
            "sequences": sequences,
            "attempts": self._effect_log.attempts[key],
        }

    def _fire_kill(self, point: str, request: EffectRequest) -> bool:
        for kill in self._pending_kills:
            if kill.point == point and kill.is_match_for(request):
                self._pending_kills.remove(kill)
                kill_and_wait(kill.pid)
                self._fired_kills.append(kill)
                return True
        return False


def kill_and_wait(pid: int) -> None:
    """SIGKILL, and return only when the process runs no more: it must not act on what follows."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        if not select.select([handle], [], [], _FATAL_SECONDS)[0]:
            raise RuntimeError(f"process {pid} outlives SIGKILL by {_FATAL_SECONDS:g} s")
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay-ms", type=int, default=0)
    options = parser.parse_args()
    serve_app(LedgerApp(EffectLog(options.file), options.delay_ms), options.port)


if __name__ == "__main__":
    main()
