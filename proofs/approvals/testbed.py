"""The place of the proof: gateways that are killed and come back with another clock, workers, an administrator, and
someone who can write to the database.

One gateway gives people seconds to decide, the others hours.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from deputize.store.local_postgres import LocalPostgres
from proofs.approvals.clock_skew import BEHIND, RIGHT, SkewedClocks
from proofs.approvals.identities import FRESH_SECONDS, LEADS, ONCALL, Identities
from proofs.kit.fork_server import ForkedProcess
from proofs.kit.gateway import RAISED_REQUEST_LIMITS, prepare_gateway
from proofs.kit.helper_servers import LedgerHandle
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.kit.sandbox import Sandbox
from proofs.kit.worker_pool import Database, WorkerPool

TENANT = "acme"
# How long people may take: at most gateways, and at the one in a hurry, where the second group is asked after one.
HOURS_STEPS, SECONDS_STEPS = [6 * 3600, 12 * 3600], [1, 3]
CONNECTION_ERRORS = (OSError, EOFError, TimeoutError)
RETRY_STATUSES = (429, 502, 503, 504)
# How an act is refused that was done already.
_DONE_STATUSES = (404, 409, 422)
TIMEOUT_SECONDS = 30.0
_PAUSE = 0.15
_BASE = f"""
@id("looking")
permit (principal, action, resource == Tool::"asked.look");

@id("acts-ask")
@reason("Somebody of {ONCALL} agrees first.")
@decision("ask")
@approvers("{ONCALL}, {LEADS}")
permit (principal, action, resource) when {{
  resource in [Tool::"asked.book", Tool::"asked.send", Tool::"asked.wipe"]
}};

@id("pacts-ask-two")
@decision("ask")
@approvers("{ONCALL}, {LEADS}")
@quorum("2")
permit (principal, action, resource == Tool::"asked.pair");
"""
_SETTINGS = """
[identity]
public_url = "http://gateway.proof"

[timing]
lease_seconds = 3.0
sweep_seconds = 0.2
margin_seconds = 0.2

[runs]
most_takeovers = 50
reconcile_after_seconds = 1
reconcile_seconds = 1
reconcile_tries = 1

[approvals]
groups = ["{oncall}", "{leads}"]
fresh_seconds = {fresh}
step_seconds = {steps}
"""


@dataclass(kw_only=True, slots=True)
class GatewaySlot:
    """A gateway's place: its folder and address stay, anyone who serves there changes."""

    name: str
    folder: Path
    url: str
    has_short_deadline: bool
    minutes: int = RIGHT
    process: ForkedProcess | None = None


@dataclass(kw_only=True, slots=True)
class WorkerOutage:
    """A time without any worker. Anyone who has something to do between a yes and the beginning waits for it."""

    waiter_count: int = 0
    inside_count: int = 0
    _start_event: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def join_outage(self) -> AsyncIterator[None]:
        self.waiter_count += 1
        try:
            await self._start_event.wait()
        finally:
            self.waiter_count -= 1
        self.inside_count += 1
        try:
            yield
        finally:
            self.inside_count -= 1

    async def run_outage(self) -> None:
        """Those who wait by now do what they have to do."""
        self._start_event.set()
        while self.waiter_count:  # noqa: ASYNC110 -- they are on their way in
            await asyncio.sleep(0)
        self._start_event.clear()
        while self.inside_count:  # noqa: ASYNC110 -- what they do takes its time
            await asyncio.sleep(0.05)


@dataclass(kw_only=True, slots=True)
class Testbed:
    sandbox: Sandbox
    clocks: SkewedClocks
    people: Identities
    ledger: LedgerHandle
    database: Database
    gateway_slots: list[GatewaySlot]
    pool: WorkerPool
    env: dict[str, str]
    things: Path
    rng: random.Random
    outage: WorkerOutage = field(default_factory=WorkerOutage)
    killed_gateways: int = 0
    starts_by_clock: dict[int, int] = field(default_factory=dict)
    _rules: dict[str, str] = field(default_factory=lambda: {"base.cedar": _BASE})
    _contracts: dict[str, Any] = field(default_factory=dict)
    _policy_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start_gateway(self, slot: GatewaySlot, minutes: int) -> None:
        """A gateway whose clock is off says that it is not ready; here it is given work all the same."""
        slot.minutes = minutes
        self.starts_by_clock[minutes] = self.starts_by_clock.get(minutes, 0) + 1
        fork_server = self.clocks.fork_servers[minutes]
        ready = "/readyz" if minutes == RIGHT else "/healthz"
        slot.process = await fork_server.fork_process(slot.folder, self.env, slot.url, ready_path=ready)

    async def kill_gateway(self, slot: GatewaySlot) -> None:
        process, slot.process = slot.process, None
        if process is not None:
            await process.close()
            self.killed_gateways += 1

    async def stop_gateways(self) -> None:
        for slot in self.gateway_slots:
            await self.kill_gateway(slot)

    async def start_worker(self, worker_slot: int, minutes: int) -> None:
        self.starts_by_clock[minutes] = self.starts_by_clock.get(minutes, 0) + 1
        self.pool.fork_server = self.clocks.fork_servers[minutes]
        await self.pool.start_worker(worker_slot)

    def pick_gateway(
        self, *, has_short_deadline: bool | None = None, excluded_minutes: Collection[int] = ()
    ) -> GatewaySlot | None:
        """Any that serves just now; by how it was furnished, and not with one of these clocks."""
        live_slots = [
            slot
            for slot in self.gateway_slots
            if slot.process is not None
            and slot.minutes not in excluded_minutes
            and (has_short_deadline is None or slot.has_short_deadline == has_short_deadline)
        ]
        return self.rng.choice(live_slots) if live_slots else None

    async def post_json(self, slot: GatewaySlot, path: str, value: Any, token: str, **headers: str) -> HttpResponse:
        """Once, on a connection of its own. Raises one of `GONE` if there is no answer."""
        return await self.send_request(slot, "POST", path, value, token, **headers)

    async def send_request(
        self, slot: GatewaySlot, method: str, path: str, value: Any, token: str, **headers: str
    ) -> HttpResponse:
        http = HttpConnection.for_url(slot.url, token=token)
        header_fields = {name.replace("_", "-"): each for name, each in headers.items()}
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                body = b"" if value is None else orjson.dumps(value)
                return await http.send(method, path, headers=header_fields, body=body)
        finally:
            http.close()

    async def post_form(self, slot: GatewaySlot, path: str, fields: str) -> HttpResponse:
        http = HttpConnection.for_url(slot.url)
        headers = {"content-type": "application/x-www-form-urlencoded"}
        try:
            return await http.send("POST", path, headers=headers, body=fields.encode())
        finally:
            http.close()

    async def run_admin_command(
        self, method: str, path: str, value: Any, *, ok_statuses: Collection[int] = (200, 201)
    ) -> HttpResponse:
        """What an administrator does, again until it is done; `fine` are the answers that say so."""
        had_connection_error = False
        while True:
            # Where the clock is behind, a sign-in of a moment ago is one of the future.
            slot = self.pick_gateway(excluded_minutes=(BEHIND,))
            if slot is not None:
                token = self.people.issue_admin_token(slot.minutes)
                try:
                    answer = await self.send_request(slot, method, path, value, token)
                except CONNECTION_ERRORS:
                    had_connection_error = True
                else:
                    # What was lost may have been done, and is refused the second time.
                    if answer.status in ok_statuses or (had_connection_error and answer.status in _DONE_STATUSES):
                        return answer
                    if answer.status not in RETRY_STATUSES:
                        raise RuntimeError(f"{method} {path}: {answer.status} {answer.body[:400]!r}")
            await asyncio.sleep(_PAUSE)

    async def put_policies(self, **policy_texts: str) -> str:
        """The whole set, with these files in place of what they were; the name of the set."""
        async with self._policy_lock:
            self._rules |= {f"{name}.cedar": text for name, text in policy_texts.items()}
            files = [{"path": path, "text": text} for path, text in self._rules.items()]
            answer = await self.run_admin_command("PUT", "/v1/policies", {"files": files})
            return str(answer.json()["digest"])

    async def register_tool(self, name: str, *, version: str = "1.0.0", function_name: str = "book") -> None:
        """A further tool on the same function, for anyone who wants to change one without harming others."""
        if function_name not in self._contracts:
            tool = (await self.run_admin_command("GET", f"/v1/tools/asked.{function_name}", None)).json()
            self._contracts[function_name] = tool["contract"]
        handler = {"target": f"tools.approvals:{function_name}"}
        contract = {**self._contracts[function_name], "name": name, "version": version, "handler": handler}
        await self.run_admin_command("POST", "/v1/tools", contract)


async def create_testbed(
    sandbox: Sandbox, postgres: LocalPostgres, ledger: LedgerHandle, clocks: SkewedClocks, rng: random.Random
) -> Testbed:
    people = Identities()
    keys_file, things = sandbox.folder / "people.json", sandbox.folder / "things"
    keys_file.write_text(people.people_issuer.render_jwks())
    things.mkdir()
    # A gateway that starts would put its own rules in force again, in place of what changed meanwhile.
    env = {"PROOF_LEDGER": ledger.url, "PROOF_THINGS": str(things), "DEPUTIZE_POLICY__FILES": "[]"}
    gateway_slots = []
    for name, step_seconds in (("one", HOURS_STEPS), ("two", HOURS_STEPS), ("hasty", SECONDS_STEPS)):
        settings = _SETTINGS.format(oncall=ONCALL, leads=LEADS, fresh=FRESH_SECONDS, steps=step_seconds)
        files = await prepare_gateway(
            sandbox, postgres.dsn, people.program_issuer, name=name, tools="approvals.py",
            settings=people.render_settings(str(keys_file)) + settings + RAISED_REQUEST_LIMITS,
        )  # fmt: skip
        gateway_slots.append(
            GatewaySlot(name=name, folder=files.folder, url=files.url, has_short_deadline=step_seconds is SECONDS_STEPS)
        )
    database = Database(postgres.dsn)
    sandbox.add_cleanup(database.close)
    pool = WorkerPool(
        sandbox=sandbox,
        fork_server=clocks.fork_servers[RIGHT],
        folder=gateway_slots[0].folder,
        env=env,
        database=database,
    )
    testbed = Testbed(
        sandbox=sandbox,
        clocks=clocks,
        people=people,
        ledger=ledger,
        database=database,
        gateway_slots=gateway_slots,
        pool=pool,
        env=env,
        things=things,
        rng=rng,
    )
    sandbox.add_cleanup(testbed.stop_gateways)
    sandbox.add_cleanup(pool.stop_all)
    return testbed
