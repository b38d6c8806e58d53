"""OpenBao sealed, killed and slow under load: who needs a secret fails closed, who needs none does not notice.

A real OpenBao stands behind a TCP proxy that can be made slow. Traffic of both kinds runs without a pause, first with
a healthy vault, then under each fault, then healthy again; the ledger says what was really done. Afterwards the secrets
are looked for, in every spelling, in everything that was answered, logged, traced and stored.
"""

import asyncio
import base64
import hashlib
import secrets
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.helper_servers import LedgerHandle, start_ledger, start_sink
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.kit.ledger import Effect
from proofs.kit.openbao import OpenBaoServer
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.kit.secret_patterns import SecretPatterns, copy_tables
from proofs.kit.tcp_proxy import TcpProxy

NAME = "vault"
PROMISE = "While the vault is away, only calls that need a secret fail, and closed; secrets are found nowhere."

SECRET = "crm/api-key"
PLAIN_TOOLS = ("look", "act")
PLAIN_CONNECTIONS = 4
PLAIN_PAUSE = 0.02
KEYED_PER_SECOND = 20.0
# Repeated after recovery with the same keys, so many of each fault's refused writes.
REPEAT_COUNT = 20
MAX_SLOWDOWN = 2.0
# Longer than anybody waits.
DELAY_SECONDS = 10.0
MARKER = f"session-{secrets.token_hex(12)}"
_SETTINGS = """
[vault]
kind = "openbao"
address = "{address}"
token_file = "{token_file}"
seconds = 0.5

[telemetry]
trace_sample = 1.0
log_level = "debug"
otlp_endpoint = "{sink}/v1/traces"
"""


@dataclass(kw_only=True, slots=True)
class TrafficPhase:
    """What came of the traffic of one stretch of time."""

    name: str
    plain_ms: dict[str, list[float]] = field(default_factory=lambda: {tool: [] for tool in PLAIN_TOOLS})
    plain_failures: Counter[str] = field(default_factory=Counter)
    keyed_count: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    success_count: int = 0
    wrong_credential_count: int = 0
    refused_writes: list[str] = field(default_factory=list)
    act_count: int = 0

    @property
    def plain_count(self) -> int:
        return sum(len(times) for times in self.plain_ms.values())

    def record_plain_answer(self, answer: HttpResponse) -> None:
        if answer.status != 200:
            self.plain_failures[answer.json()["error"]["number"]] += 1

    def record_keyed_answer(self, tool: str, label: str, answer: HttpResponse, fingerprint: str) -> None:
        """Record a call that needs the secret, which it tells by its fingerprint."""
        payload = answer.json()
        if answer.status == 200:
            self.success_count += 1
            self.wrong_credential_count += payload["result"]["fingerprint"] != fingerprint
            return
        self.refusals[payload["error"]["number"]] += 1
        if tool == "keyed_act":
            self.refused_writes.append(label)

    def compute_p50_ms(self, tool: str) -> float:
        return statistics.median(self.plain_ms[tool])

    def compute_slowdown(self, before: "TrafficPhase") -> float:
        """The worse of reads and writes: mixed, their median would lie between the two."""
        return max(self.compute_p50_ms(tool) / before.compute_p50_ms(tool) for tool in PLAIN_TOOLS)

    @property
    def failure_count(self) -> int:
        """With a healthy vault: calls that failed, acted other than once, or acted with another credential."""
        failures = self.keyed_count - self.success_count + sum(self.plain_failures.values())
        return failures + self.wrong_credential_count + abs(self.act_count - self.success_count)

    @property
    def open_count(self) -> int:
        """Calls that needed a secret and did not fail closed: they succeeded, acted, or failed in another way."""
        others = sum(number for error_number, number in self.refusals.items() if not error_number.startswith("E36"))
        return self.success_count + others + self.act_count

    def __str__(self) -> str:
        refusal_text = (
            ", ".join(f"{number} {error_number}" for error_number, number in sorted(self.refusals.items()))
            or "none refused"
        )
        p50 = " and ".join(f"{self.compute_p50_ms(tool):.1f}" for tool in PLAIN_TOOLS)
        return (
            f"{self.name}: {self.plain_count} calls without a secret, p50 {p50} ms, "
            f"{sum(self.plain_failures.values())} failed; {self.keyed_count} with one: {self.success_count} "
            f"succeeded, {refusal_text}, "
            f"{self.act_count} acts"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultRound:
    """A healthy stretch, a fault right after it, and how it was got over."""

    healthy: TrafficPhase
    fault: TrafficPhase
    recovery_seconds: float
    wrong_repeat_count: int

    @property
    def slowdown(self) -> float:
        return self.fault.compute_slowdown(self.healthy)


class Testbed:
    """One gateway with its vault, and every answer that came from it, kept for the search."""

    def __init__(self, sandbox: Sandbox, gateway: GatewayHandle, ledger: LedgerHandle, token: str, canary: str) -> None:
        self.sandbox, self.gateway, self.ledger = sandbox, gateway, ledger
        self._token = token
        self._fingerprint = hashlib.sha256(canary.encode()).hexdigest()
        self._numbers = count(1)
        self.answers_file = sandbox.folder / "answers"

    async def send_call(self, tool: str, label: str, http: HttpConnection | None = None) -> HttpResponse:
        """The label is the idempotency key too; the session is a marker that the search must find again."""
        connection = http or HttpConnection.for_url(self.gateway.url, token=self._token)
        request = {"tool": f"vault.{tool}", "arguments": {"label": label}, "session": MARKER}
        try:
            answer = await connection.post("/v1/calls", request, Idempotency_Key=label)
        finally:
            if http is None:
                connection.close()
        with self.answers_file.open("ab") as output:
            output.write(answer.body + b"\n")
        return answer

    async def run_phase(
        self, name: str, seconds: float, *, min_plain_calls: int = 0, keyed_per_second: float = KEYED_PER_SECOND
    ) -> TrafficPhase:
        """Traffic of both kinds for so long, and longer if need be until so many plain calls are made: a busy machine
        makes it slower, not smaller."""
        phase = TrafficPhase(name=name)
        deadline = time.monotonic() + seconds

        def should_continue() -> bool:
            return time.monotonic() < deadline or phase.plain_count < min_plain_calls

        async with asyncio.TaskGroup() as group:
            for _ in range(PLAIN_CONNECTIONS):
                group.create_task(self._run_plain_calls(phase, should_continue))
            while should_continue():
                # A call that waits for a slow vault must not make those behind it wait to be sent.
                group.create_task(self._send_keyed_call(phase))
                await asyncio.sleep(1 / keyed_per_second)
        phase.act_count = count_acts(name, await self.ledger.list_effects())
        self.sandbox.log(str(phase))
        return phase

    async def _run_plain_calls(self, phase: TrafficPhase, should_continue: Callable[[], bool]) -> None:
        http = HttpConnection.for_url(self.gateway.url, token=self._token)
        for number in count():
            if not should_continue() and number >= len(PLAIN_TOOLS):
                break
            began = time.perf_counter()
            tool = PLAIN_TOOLS[number % 2]
            answer = await self.send_call(tool, f"{phase.name}-{next(self._numbers)}", http)
            phase.plain_ms[tool].append((time.perf_counter() - began) * 1000)
            phase.record_plain_answer(answer)
            await asyncio.sleep(PLAIN_PAUSE)
        http.close()

    async def _send_keyed_call(self, phase: TrafficPhase) -> None:
        number = next(self._numbers)
        label, tool = f"{phase.name}-{number}", ("keyed_look", "keyed_act")[number % 2]
        phase.keyed_count += 1
        phase.record_keyed_answer(tool, label, await self.send_call(tool, label), self._fingerprint)

    async def measure_recovery(self, fault: TrafficPhase) -> tuple[float, int]:
        """How long until a secret is had again; and how many refused writes, sent again by their own keys, then acted
        other than exactly once."""
        began = time.monotonic()
        async with asyncio.timeout(20):
            while True:
                if (await self.send_call("keyed_look", f"recovering-{next(self._numbers)}")).status == 200:
                    break
                await asyncio.sleep(0.05)
        seconds = time.monotonic() - began
        labels = fault.refused_writes[:REPEAT_COUNT]
        answers = [await self.send_call("keyed_act", label) for label in labels]
        return seconds, count_wrong_repeats(labels, answers, await self.ledger.list_effects())


async def prove(sandbox: Sandbox) -> Verdict:
    canary, local_canary = (f"canary-{secrets.token_urlsafe(24)}" for _ in range(2))
    spans = sandbox.folder / "spans"
    async with OpenBaoServer(sandbox.folder / "bao") as vault, TcpProxy(vault.url) as proxy:
        await vault.put_secret("acme", SECRET, {"value": canary})
        postgres = await sandbox.start_postgres()
        ledger, issuer = await start_ledger(sandbox), create_issuer()
        settings = _SETTINGS.format(
            address=proxy.url, token_file=vault.token_file, sink=await start_sink(sandbox, keep=spans)
        )
        env = {"PROOF_LEDGER": ledger.url}
        gateway = await start_gateway(sandbox, postgres.dsn, issuer, tools="vault.py", settings=settings, env=env)
        testbed = Testbed(sandbox, gateway, ledger, issuer.issue_token("ana"), canary)
        figures = await _run_faults(sandbox, testbed, vault, proxy)
        figures["quotes_released"] = await _count_leaks(testbed, canary)
        local = await start_gateway(sandbox, postgres.dsn, issuer, name="local", tools="vault.py", env=env)
        local_testbed = Testbed(sandbox, local, ledger, issuer.issue_token("ana"), local_canary)
        figures |= await _check_local_store(local_testbed, issuer, local_canary)
        patterns = SecretPatterns()
        for name, value in (("secret", canary), ("local", local_canary), ("vault token", vault.token_file.read_text())):
            patterns.add_secret(name, value)
        # Stopped, a gateway has sent its last spans.
        for each in (gateway, local):
            await each.child.stop()
        places = {"answers": [testbed.answers_file], "spans": [spans], "logs": sorted(sandbox.folder.glob("*.log"))}
        places |= {name: [file] for name, file in (await copy_tables(postgres.dsn, sandbox.folder / "tables")).items()}
        matches = [each for place, paths in places.items() for each in await patterns.search(place, *paths)]
        figures |= {"found": len(matches), "places_searched": len(places)}
        sandbox.log(f"searched {len(places)} places: {'; '.join(map(str, matches)) or 'no secret'}")
        controls = {"the search finds what is there": await _can_search_find(sandbox, places, canary)}
        controls |= await _run_controls(testbed, vault, proxy, canary)
    return Verdict(figures=figures, controls=controls, notes=[str(each) for each in matches])


async def _run_faults(sandbox: Sandbox, testbed: Testbed, vault: OpenBaoServer, proxy: TcpProxy) -> dict[str, Figure]:
    """Each fault several times, and each time against the healthy stretch right before it: the machine has other work,
    and a ratio of neighbours in time does not drift with it."""

    async def slow_down() -> None:
        proxy.delay = DELAY_SECONDS

    async def speed_up() -> None:
        proxy.delay = 0.0

    await testbed.run_phase("warming", 0.5)
    rounds: dict[str, list[FaultRound]] = {"sealed": [], "killed": [], "slow": []}
    for number in range(sandbox.pick_size(quick=1, full=7)):
        for name, inject_fault, repair in (
            ("sealed", vault.seal, vault.unseal),
            ("killed", vault.kill, vault.restart),
            ("slow", slow_down, speed_up),
        ):
            rounds[name].append(await _run_round(sandbox, testbed, f"{name}{number}", inject_fault, repair))
    last = await testbed.run_phase("after", 1.0)
    return judge_rounds(rounds, last)


def judge_rounds(rounds: Mapping[str, Sequence[FaultRound]], last: TrafficPhase) -> dict[str, Figure]:
    """Judge the rounds of each fault, and the healthy stretch after all of them."""
    all_rounds = [each for of_fault in rounds.values() for each in of_fault]
    faults = [each.fault for each in all_rounds]
    ratios = {name: statistics.median(each.slowdown for each in of_fault) for name, of_fault in rounds.items()}
    return {
        "open": sum(fault.open_count for fault in faults),
        "refused_closed": sum(fault.refusals.total() for fault in faults),
        "plain_failed": sum(fault.plain_failures.total() for fault in faults),
        "plain_calls": sum(fault.plain_count for fault in faults),
        "slower_at_p50": round(max(ratios.values()), 2),
        "not_served_when_healthy": sum(each.healthy.failure_count for each in all_rounds) + last.failure_count,
        "repeats_not_once": sum(each.wrong_repeat_count for each in all_rounds),
        **{f"{name}_p50_ratio": round(ratio, 2) for name, ratio in ratios.items()},
        "worst_single_round": round(max(each.slowdown for each in all_rounds), 2),
        "slowest_recovery_s": round(max(each.recovery_seconds for each in all_rounds), 2),
    }


async def _run_round(
    sandbox: Sandbox,
    testbed: Testbed,
    name: str,
    inject_fault: Callable[[], Awaitable[None]],
    repair: Callable[[], Awaitable[None]],
) -> FaultRound:
    seconds, min_plain_calls = (3.0, 200) if sandbox.full else (1.5, 50)
    healthy = await testbed.run_phase(f"before-{name}", seconds, min_plain_calls=min_plain_calls)
    await inject_fault()
    fault = await testbed.run_phase(name, seconds, min_plain_calls=min_plain_calls)
    await repair()
    recovery_seconds, wrong_repeat_count = await testbed.measure_recovery(fault)
    return FaultRound(
        healthy=healthy, fault=fault, recovery_seconds=recovery_seconds, wrong_repeat_count=wrong_repeat_count
    )


async def _count_leaks(testbed: Testbed, canary: str) -> int:
    """How many tools that give their secret away got an answer out."""
    answers = [await testbed.send_call("blurt", way) for way in ("result", "basic", "summary", "error")]
    return count_released(answers, canary)


def count_acts(phase_name: str, effects: Iterable[Effect]) -> int:
    """Count the effects of calls of one phase that needed a secret."""
    return sum(effect.tool.startswith("keyed") and effect.call.startswith(f"{phase_name}-") for effect in effects)


def count_wrong_repeats(labels: Sequence[str], answers: Sequence[HttpResponse], effects: Iterable[Effect]) -> int:
    """Count the repeated writes that did not succeed, or did not act exactly once."""
    effect_counts = Counter(effect.call for effect in effects)
    pairs = zip(labels, answers, strict=True)
    return sum(answer.status != 200 or effect_counts[label] != 1 for label, answer in pairs)


def count_released(answers: Iterable[HttpResponse], canary: str) -> int:
    """Count the answers that succeeded although they quote the secret, or that contain it."""
    return sum(answer.status == 200 or canary.encode() in answer.body for answer in answers)


async def _check_local_store(testbed: Testbed, issuer: Issuer, canary: str) -> dict[str, Figure]:
    """Check the same without a vault: put through the API, used, given away in vain."""
    admin = HttpConnection.for_url(testbed.gateway.url, token=issuer.issue_token("root", scopes=("deputize:admin",)))
    missing_response = await testbed.send_call("keyed_act", "local-0")
    put_response = await admin.post("/v1/secrets", {"name": SECRET, "value": canary})
    admin.close()
    if put_response.status != 201:
        raise RuntimeError(f"the secret was not put: {put_response.body!r}")
    phase = await testbed.run_phase("local", 1.0)
    return judge_local_store(missing_response, await _count_leaks(testbed, canary), phase)


def judge_local_store(missing: HttpResponse, leak_count: int, phase: TrafficPhase) -> dict[str, Figure]:
    """Judge a call without its secret, tools that give the secret away, and calls that have it."""
    is_refused = missing.status == 424 and missing.json()["error"]["number"] == "E3602"
    return {"local_store_wrong": leak_count + (not is_refused), "local_store_failures": phase.failure_count}


async def _can_search_find(sandbox: Sandbox, places: Mapping[str, list[Path]], canary: str) -> bool:
    """A marker that every call carried is in the tables, a tool's name in the spans, an address in the logs, and a
    secret where one was planted: a search that finds nothing has looked."""
    planted_file = sandbox.folder / "planted"
    planted_file.write_bytes(b"\0\1" + base64.b64encode(f"user:{canary}".encode()) + b"\0")
    for text, place in ((MARKER, "deputize.calls"), ("vault.blurt", "spans"), ("127.0.0.1", "logs")):
        patterns = SecretPatterns()
        patterns.add_secret(text, text)
        if not await patterns.search(place, *places[place]):
            sandbox.log(f"the search does not find {text} in {place}")
            return False
    patterns = SecretPatterns()
    patterns.add_secret("planted", canary)
    return len(await patterns.search("planted", planted_file)) == 1


async def _run_controls(testbed: Testbed, vault: OpenBaoServer, proxy: TcpProxy, canary: str) -> dict[str, bool]:
    await restart_as_variant(testbed.gateway, "vault_empty_credential")
    await vault.seal()
    empty_phase = await testbed.run_phase("empty", 0.5)
    await vault.unseal()
    await restart_as_variant(testbed.gateway, "vault_blocking")
    phase_before = await testbed.run_phase("unblocked", 0.5, keyed_per_second=2.0)
    proxy.delay = DELAY_SECONDS
    blocking_phase = await testbed.run_phase("blocking", 1.0, keyed_per_second=4.0)
    proxy.delay = 0.0
    await restart_as_variant(testbed.gateway, "vault_unredacted")
    return {
        "an empty credential while the vault is away": empty_phase.act_count > 0,
        "asking the vault on the loop": blocking_phase.compute_slowdown(phase_before) > 2 * MAX_SLOWDOWN,
        "answers not looked at": await _count_leaks(testbed, canary) > 0,
    }
