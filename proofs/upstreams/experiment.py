"""Thirty upstreams behind two gateways: ten refuse, swallow or close connections, are slow, flap, or send garbage or
answers without end.

Callers of the healthy ones must hardly notice, both gateways must know of an open circuit at nearly the same time, and
what nobody declared repeatable is sent once. Rounds with and without the sick ones take turns in one run.
"""

import asyncio
import hashlib
import itertools
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import orjson

from proofs.kit.gateway import GatewayHandle, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.http_client import HttpConnection
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.recovery.judge import compute_percentile
from proofs.upstreams.services import DOCUMENT, Behavior, Service, make_services, render_settings, spoil

NAME = "upstreams"
PROMISE = "A dead, slow or lying upstream hurts nobody else, and every gateway knows of it within two seconds."

_SERVICES, _SICK = 30, 10
# Of each service through each gateway: so many callers, each with a pause after every call.
_CALLERS = 4
_PAUSE_SECONDS = 1.6
_SAMPLE_SECONDS = 0.1
_WATCH_SECONDS = 6.0
_CIRCUIT_LEVEL = re.compile(rb'^deputize_circuit_state\{service="([^"]+)"\} ([0-9.]+)', re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRecord:
    service: str
    seconds: float
    is_success: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """The open circuits that each gateway knew of at one moment."""

    at: float
    open_circuits: tuple[frozenset[str], ...]


@dataclass(kw_only=True, slots=True)
class CircuitWatch:
    """Which circuits each gateway knew to be open, sampled ten times a second from its own metrics."""

    gateways: Sequence[GatewayHandle]
    samples: list[Sample] = field(default_factory=list)

    async def watch(self) -> None:
        connections = [HttpConnection.for_url(each.metrics_url) for each in self.gateways]
        try:
            while True:
                bodies = [(await each.get("/metrics")).body for each in connections]
                now = asyncio.get_running_loop().time()
                self.samples.append(Sample(now, tuple(find_open_circuits(body) for body in bodies)))
                await asyncio.sleep(_SAMPLE_SECONDS)
        finally:
            for connection in connections:
                connection.close()

    @property
    def opened(self) -> set[str]:
        return {name for sample in self.samples for names in sample.open_circuits for name in names}


def find_open_circuits(metrics: bytes) -> frozenset[str]:
    return frozenset(name.decode() for name, level in _CIRCUIT_LEVEL.findall(metrics) if float(level) > 0)


def measure_disagreement(samples: Sequence[Sample]) -> float:
    """The longest time for which two gateways knew different things about one circuit."""
    longest, since = 0.0, dict[str, float]()
    for sample in samples:
        one, other = sample.open_circuits
        disputed = one ^ other
        since = {name: since.get(name, sample.at) for name in disputed}
        longest = max([longest, *(sample.at - at for at in since.values())])
    return longest


@dataclass(kw_only=True, slots=True)
class Callers:
    """Callers of every service through every gateway, which record how their calls ended."""

    token: str
    numbers: Iterator[int] = field(default_factory=itertools.count)

    async def run(
        self, gateways: Sequence[GatewayHandle], services: Sequence[Service], seconds: float
    ) -> list[CallRecord]:
        records: list[CallRecord] = []
        ends_at = asyncio.get_running_loop().time() + seconds
        pairs = [(gateway, service) for gateway in gateways for service in services for _ in range(_CALLERS)]
        pause = _PAUSE_SECONDS / len(pairs)
        await asyncio.gather(
            *(self._call_until(ends_at, *pair, number * pause, records) for number, pair in enumerate(pairs))
        )
        return records

    async def _call_until(
        self, ends_at: float, gateway: GatewayHandle, service: Service, delay: float, records: list[CallRecord]
    ) -> None:
        loop, connection = asyncio.get_running_loop(), HttpConnection.for_url(gateway.url, token=self.token)
        await asyncio.sleep(delay)
        while (began := loop.time()) < ends_at:
            number = next(self.numbers)
            tool = f"{service.name}.{'get_order' if number % 2 else 'ship_order'}"
            call = {"tool": tool, "arguments": {"id": f"o{number}"}}
            answer = await connection.post("/v1/calls", call, idempotency_key=f"key-{number}")
            is_success = answer.status == 200
            records.append(CallRecord(service=service.name, seconds=loop.time() - began, is_success=is_success))
            await asyncio.sleep(_PAUSE_SECONDS)
        connection.close()


async def prove(sandbox: Sandbox) -> Verdict:
    services = make_services(_SERVICES)
    for service in services:
        await service.start()
        sandbox.add_cleanup(service.close)
    gateways, callers = await _start_gateways(sandbox, services)
    sick, names = services[:_SICK], {each.name for each in services[_SICK:]}
    ratios: list[float] = []
    failures = 0
    watch = CircuitWatch(gateways=gateways)
    watching = asyncio.create_task(watch.watch())
    await callers.run(gateways, services, 3)
    for number in range(sandbox.pick_size(quick=1, full=3)):
        sandbox.log(f"round {number + 1}: all healthy, then ten sick")
        for service in sick:
            await service.behave(Behavior.HEALTHY)
        before = await callers.run(gateways, services, sandbox.pick_size(quick=4, full=15))
        await spoil(sick)
        during = await callers.run(gateways, services, sandbox.pick_size(quick=8, full=30))
        alone, beside = ([each for each in records if each.service in names] for records in (before, during))
        failures += sum(not each.is_success for each in (*alone, *beside))
        ratios.append(_compute_p99(beside) / _compute_p99(alone))
    shared_seconds = await _measure_sharing(gateways, callers, services[-1])
    closed_count = await _wait_for_closed(sandbox, callers, watch, gateways, sick)
    watching.cancel()
    figures: dict[str, Figure] = {
        "healthy_p99_of_alone": round(statistics.median(ratios), 2),
        "healthy_calls_that_failed": failures,
        "circuits_opened": len(watch.opened & {each.name for each in sick}),
        "circuits_left_open": len(sick) - closed_count,
        "longest_disagreement_seconds": round(max(measure_disagreement(watch.samples), shared_seconds), 1),
        "unsafe_calls_sent_twice": sum(count - 1 for each in services for count in each.shipped.values()),
        "unsafe_calls": sum(len(each.shipped) for each in services),
    }
    sandbox.log("control: a gateway that does not share its circuits")
    await restart_as_variant(gateways[1], "upstreams_unshared")
    unshared_seconds = await _measure_sharing(gateways, callers, services[-2])
    return Verdict(figures=figures, controls={"upstreams_unshared": unshared_seconds > 2})


async def _start_gateways(sandbox: Sandbox, services: list[Service]) -> tuple[list[GatewayHandle], Callers]:
    postgres, issuer = await sandbox.start_postgres(), create_issuer()
    document = sandbox.folder / "orders.json"
    document.write_bytes(orjson.dumps(DOCUMENT))
    settings = render_settings(services, str(document), hashlib.sha256(document.read_bytes()).hexdigest())
    gateways = [
        await start_gateway(sandbox, postgres.dsn, issuer, name=name, tools="orders.py", settings=settings)
        for name in ("one", "two")
    ]
    scopes = ("proof:write", *(f"{each.name}:write" for each in services))
    return gateways, Callers(token=issuer.issue_token("ana", agent="bot", scopes=scopes))


async def _measure_sharing(gateways: Sequence[GatewayHandle], callers: Callers, service: Service) -> float:
    """How long the second gateway does not know what only the first one was told."""
    watch = CircuitWatch(gateways=gateways)
    watching = asyncio.create_task(watch.watch())
    await service.behave(Behavior.DEAD)
    await callers.run(gateways[:1], [service] * 5, _WATCH_SECONDS)
    watching.cancel()
    await service.behave(Behavior.HEALTHY)
    if service.name not in watch.opened:
        raise RuntimeError(f"the circuit of {service.name} did not open, so there was nothing to share")
    return measure_disagreement(watch.samples)


async def _wait_for_closed(
    sandbox: Sandbox, callers: Callers, watch: CircuitWatch, gateways: Sequence[GatewayHandle], sick: list[Service]
) -> int:
    """Heal the sick ones and call them until their circuits are closed; count those that are, on both gateways."""
    for service in sick:
        await service.behave(Behavior.HEALTHY)
    names = {each.name for each in sick}
    for _ in range(sandbox.pick_size(quick=1, full=30)):
        await callers.run(gateways, sick, 5)
        if not names & frozenset().union(*watch.samples[-1].open_circuits):
            break
    return len(names - frozenset().union(*watch.samples[-1].open_circuits))


def _compute_p99(records: Sequence[CallRecord]) -> float:
    return compute_percentile([each.seconds for each in records], 0.99)
