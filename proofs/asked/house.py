"""The place of the proof: gateways that are killed and come back with another clock, workers, an administrator, and
somebody who can write to the database.

One gateway gives people seconds to decide, the others hours. Above: `stories`, `weather`. Below: the kit.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from deputize.store.local import LocalPostgres
from proofs.asked.clocks import RIGHT, Clocks
from proofs.asked.people import FRESH_SECONDS, LEADS, ONCALL, People
from proofs.crash.nursery import Born
from proofs.fleet.crew import Crew, Database
from proofs.kit.companions import LedgerHandle
from proofs.kit.gateway import furnish_gateway
from proofs.kit.wire import Answer, Line
from proofs.kit.world import World

TENANT = "acme"
# How long people may take: at most gateways, and at the one in a hurry, where the second group is asked after one.
HOURS_STEPS, SECONDS_STEPS = [6 * 3600, 12 * 3600], [1, 3]
GONE = (OSError, EOFError, TimeoutError)
AGAIN = (429, 502, 503, 504)
PATIENCE = 30.0
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
class Gate:
    """A gateway's place: its folder and address stay, whoever serves there changes."""

    name: str
    folder: Path
    url: str
    hasty: bool
    minutes: int = RIGHT
    born: Born | None = None


@dataclass(kw_only=True, slots=True)
class Darkness:
    """A time without any worker. Whoever has something to do between a yes and the beginning waits for it."""

    waiting: int = 0
    inside: int = 0
    _fallen: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def spent(self) -> AsyncIterator[None]:
        self.waiting += 1
        try:
            await self._fallen.wait()
        finally:
            self.waiting -= 1
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    async def fall(self) -> None:
        """Those who wait by now do what they have to do."""
        self._fallen.set()
        while self.waiting:  # noqa: ASYNC110 -- they are on their way in
            await asyncio.sleep(0)
        self._fallen.clear()
        while self.inside:  # noqa: ASYNC110 -- what they do takes its time
            await asyncio.sleep(0.05)


@dataclass(kw_only=True, slots=True)
class House:
    world: World
    clocks: Clocks
    people: People
    ledger: LedgerHandle
    database: Database
    gates: list[Gate]
    crew: Crew
    env: dict[str, str]
    things: Path
    choose: random.Random
    darkness: Darkness = field(default_factory=Darkness)
    gates_killed: int = 0
    born_by_clock: dict[int, int] = field(default_factory=dict)
    _rules: dict[str, str] = field(default_factory=lambda: {"base.cedar": _BASE})
    _contracts: dict[str, Any] = field(default_factory=dict)
    _one_set_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def open_gate(self, gate: Gate, minutes: int) -> None:
        """A gateway whose clock is off says that it is not ready; here it is given work all the same."""
        gate.minutes = minutes
        self.born_by_clock[minutes] = self.born_by_clock.get(minutes, 0) + 1
        nursery = self.clocks.nurseries[minutes]
        ready = "/readyz" if minutes == RIGHT else "/healthz"
        gate.born = await nursery.bear(gate.folder, self.env, gate.url, ready=ready)

    async def kill_gate(self, gate: Gate) -> None:
        born, gate.born = gate.born, None
        if born is not None:
            await born.end()
            self.gates_killed += 1

    async def close_gates(self) -> None:
        for gate in self.gates:
            await self.kill_gate(gate)

    async def man(self, place: int, minutes: int) -> None:
        self.born_by_clock[minutes] = self.born_by_clock.get(minutes, 0) + 1
        self.crew.nursery = self.clocks.nurseries[minutes]
        await self.crew.man(place)

    def gate(self, *, hasty: bool | None = None, but: Collection[int] = ()) -> Gate | None:
        """Any that serves just now; by how it was furnished, and not with one of these clocks."""
        serving = [
            gate
            for gate in self.gates
            if gate.born is not None and gate.minutes not in but and (hasty is None or gate.hasty == hasty)
        ]
        return self.choose.choice(serving) if serving else None

    async def post(self, gate: Gate, path: str, said: Any, token: str, **headers: str) -> Answer:
        """Once, on a connection of its own. Raises one of `GONE` if there is no answer."""
        return await self.send(gate, "POST", path, said, token, **headers)

    async def send(self, gate: Gate, method: str, path: str, said: Any, token: str, **headers: str) -> Answer:
        line = Line.to(gate.url, token=token)
        named = {name.replace("_", "-"): each for name, each in headers.items()}
        try:
            async with asyncio.timeout(PATIENCE):
                body = b"" if said is None else orjson.dumps(said)
                return await line.send(method, path, headers=named, body=body)
        finally:
            line.close()

    async def form(self, gate: Gate, path: str, fields: str) -> Answer:
        line = Line.to(gate.url)
        headers = {"content-type": "application/x-www-form-urlencoded"}
        try:
            return await line.send("POST", path, headers=headers, body=fields.encode())
        finally:
            line.close()

    async def command(self, method: str, path: str, said: Any, *, fine: Collection[int] = (200, 201)) -> Answer:
        """What an administrator does, again until it is done; `fine` are the answers that say so."""
        token, lost = self.people.admin(), False
        while True:
            gate = self.gate()
            if gate is not None:
                try:
                    answer = await self.send(gate, method, path, said, token)
                except GONE:
                    lost = True
                else:
                    # What was lost may have been done, and is refused the second time.
                    if answer.status in fine or (lost and 400 <= answer.status < 500):
                        return answer
                    if answer.status not in AGAIN:
                        raise RuntimeError(f"{method} {path}: {answer.status} {answer.body[:400]!r}")
            await asyncio.sleep(_PAUSE)

    async def put_rules(self, **changed: str) -> str:
        """The whole set, with these files in place of what they were; the name of the set."""
        async with self._one_set_at_a_time:
            self._rules |= {f"{name}.cedar": text for name, text in changed.items()}
            files = [{"path": path, "text": text} for path, text in self._rules.items()]
            answer = await self.command("PUT", "/v1/policies", {"files": files})
            return str(answer.json()["digest"])

    async def new_tool(self, name: str, *, version: str = "1.0.0", of: str = "book") -> None:
        """A further tool on the same function, for whoever wants to change one without harming others."""
        if of not in self._contracts:
            shown = (await self.command("GET", f"/v1/tools/asked.{of}", None)).json()
            self._contracts[of] = shown["contract"]
        handler = {"target": f"tools.asked:{of}"}
        contract = {**self._contracts[of], "name": name, "version": version, "handler": handler}
        await self.command("POST", "/v1/tools", contract)


async def open_house(
    world: World, postgres: LocalPostgres, ledger: LedgerHandle, clocks: Clocks, choose: random.Random
) -> House:
    people = People()
    keys, things = world.folder / "people.json", world.folder / "things"
    keys.write_text(people.humans.jwks())
    things.mkdir()
    # A gateway that starts would put its own rules in force again, in place of what changed meanwhile.
    env = {"PROOF_LEDGER": ledger.url, "PROOF_THINGS": str(things), "DEPUTIZE_POLICY__FILES": "[]"}
    gates = []
    for name, steps in (("one", HOURS_STEPS), ("two", HOURS_STEPS), ("hasty", SECONDS_STEPS)):
        settings = _SETTINGS.format(oncall=ONCALL, leads=LEADS, fresh=FRESH_SECONDS, steps=steps)
        made = await furnish_gateway(
            world, postgres.dsn, people.programs, name=name, tools="asked.py",
            settings=people.settings(str(keys)) + settings,
        )  # fmt: skip
        gates.append(Gate(name=name, folder=made.folder, url=made.url, hasty=steps is SECONDS_STEPS))
    database = Database(postgres.dsn)
    world.at_end(database.close)
    crew = Crew(
        world=world, nursery=clocks.nurseries[RIGHT], folder=gates[0].folder, env=env, database=database
    )  # fmt: skip
    house = House(
        world=world, clocks=clocks, people=people, ledger=ledger, database=database, gates=gates, crew=crew, env=env,
        things=things, choose=choose,
    )  # fmt: skip
    world.at_end(house.close_gates)
    world.at_end(crew.dismiss)
    return house
