"""Load with little CPU of its own: wrk, one process per measurement, and rounds that pair two loads fairly."""

import asyncio
import shutil
import statistics
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import orjson

_MARK = "measured "
_SAME = """
function init(args)
  -- What format returns is taken once and sent as it is: wrk then never enters Lua again.
  wrk.format = function() return head .. tail end
end
"""
_UNIQUE = """
local threads = 0
function setup(thread)
  threads = threads + 1
  thread:set("number", threads)
end
function init(args)
  local count = 0
  local start = head .. number .. "-"
  request = function()
    count = count + 1
    return start .. count .. tail
  end
end
"""
_SCRIPT = """
local head, tail = %(head)s, %(tail)s
%(init)s
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\n%(mark)s{"requests":%%d,"micros":%%d,"errors":%%d,"refused":%%d,"p50":%%d,"p90":%%d,"p99":%%d,"max":%%d}\\n',
    summary.requests, summary.duration, e.connect + e.read + e.write + e.timeout, e.status,
    latency:percentile(50), latency:percentile(90), latency:percentile(99), latency.max))
end
"""


class LoadError(Exception):
    """The load could not be made, or not every request was answered well: its rate would mean nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One request, repeated. With `unique_keys` each carries an Idempotency-Key never used before."""

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    unique_keys: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What one measurement saw; latencies in milliseconds. A load other than HTTP may leave those at 0."""

    requests: int
    seconds: float
    p50_ms: float = 0.0
    p90_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


Load = Callable[[int], Awaitable[Sample]]
"""A load that runs for so many seconds; `http_load` makes one, a proof may bring others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedSamples:
    """Rounds of two loads, each ratio from two measurements side by side in time."""

    a: tuple[Sample, ...]
    b: tuple[Sample, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(a.per_second / b.per_second for a, b in zip(self.a, self.b, strict=True))

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest ratio."""
        return min(self.ratios), max(self.ratios)


def make_http_load(target: Target, *, connections: int = 64, threads: int = 1) -> Load:
    """The target under so many connections, each with one request under way."""

    async def load(seconds: int) -> Sample:
        return await run_wrk(target, seconds=seconds, connections=connections, threads=threads)

    return load


async def run_paired_rounds(a: Load, b: Load, *, rounds: int, seconds: int, warmup: int = 1) -> PairedSamples:
    """Measure a and b in turn, `rounds` times, after `warmup` seconds of each (0: none).

    Which goes first changes every round, so that a drift of the machine favours neither.
    """
    for load in (a, b):
        if warmup:
            await load(warmup)
    samples: list[tuple[Sample, Sample]] = []
    for number in range(rounds):
        if number % 2:
            second = await b(seconds)
            samples.append((await a(seconds), second))
        else:
            samples.append((await a(seconds), await b(seconds)))
    return PairedSamples(a=tuple(pair[0] for pair in samples), b=tuple(pair[1] for pair in samples))


async def run_wrk(target: Target, *, seconds: int, connections: int = 64, threads: int = 1) -> Sample:
    """Run wrk once; raises LoadFailed if a request was lost or answered with 4xx or 5xx."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise LoadError("wrk makes the load and is not installed: `apt-get install -y wrk`, then run again.")
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        script = Path(folder) / "load.lua"
        script.write_bytes(render_script(target))
        options = ["-t", str(threads), "-c", str(connections), "-d", f"{seconds}s", "--timeout", "10s"]
        process = await asyncio.create_subprocess_exec(
            wrk, *options, "-s", str(script), target.url,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return _parse_sample(target, output.decode(errors="replace"))


def render_script(target: Target) -> bytes:
    """The Lua that makes each request: its bytes are joined here once, so that wrk only adds the key."""
    parts = urlsplit(target.url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Host": parts.netloc, "Content-Length": str(len(target.body)), **target.headers}
    lines = [f"{target.method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join(lines).encode()
    tail = b"\r\n\r\n" + target.body
    if target.unique_keys:
        head += f"\r\nIdempotency-Key: {uuid.uuid4().hex}-".encode()
    init = _UNIQUE if target.unique_keys else _SAME
    return (_SCRIPT % {"head": _quote_lua(head), "tail": _quote_lua(tail), "init": init, "mark": _MARK}).encode()


def _quote_lua(text: bytes) -> str:
    """A Lua string literal of exactly these bytes."""
    return '"' + "".join(f"\\{byte:03d}" for byte in text) + '"'


def _parse_sample(target: Target, output: str) -> Sample:
    lines = [line for line in output.splitlines() if line.startswith(_MARK)]
    if not lines:
        raise LoadError(f"wrk gave no figures for {target.url}; it said: {output.strip()[-500:]}")
    figures = orjson.loads(lines[-1].removeprefix(_MARK))
    if figures["errors"] or figures["refused"] or not figures["requests"]:
        raise LoadError(
            f"{target.url}: of {figures['requests']} requests {figures['refused']} were answered with 4xx or 5xx "
            f"and {figures['errors']} failed or timed out; send one by hand to see why"
        )
    return Sample(
        requests=figures["requests"],
        seconds=figures["micros"] / 1e6,
        p50_ms=figures["p50"] / 1000,
        p90_ms=figures["p90"] / 1000,
        p99_ms=figures["p99"] / 1000,
        max_ms=figures["max"] / 1000,
    )
