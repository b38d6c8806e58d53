"""Pairs of agents change files, rows and the items of a REST service, each in a session, on the same places; then
people undo the sessions in turn until nothing more can be taken back.

What has to be there after each undo follows from the order of the calls. The control is a gateway that does not look
for who changed the same thing later.
"""

import asyncio
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from proofs.kit.gateway import GatewayHandle, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.http_client import HttpConnection
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox
from proofs.undo.judge import Change, Place, UndoRecord, World, compute_figures, find_undoable, take_back
from proofs.undo.shelf import MANIFEST, Shelf

NAME = "undo"
PROMISE = (
    "An undone session leaves what was there before, or its plan had named what stays; nothing later is overwritten."
)

_CALLS = 14
_PAIRS_AT_ONCE = 6
_TOOLS = Path(__file__).parent / "tools"
_SCOPES = ("proof:write", "files:read", "files:write", "shelf:write")


@dataclass(kw_only=True, slots=True)
class Testbed:
    gateway: GatewayHandle
    files: Path
    rows: asyncpg.Pool
    shelf: Shelf

    async def look(self, places: World) -> dict[Place, str | None]:
        """Look at what is really there."""
        rows = {row["id"]: row["value"] for row in await self.rows.fetch("select id, value from proof_rows")}
        return {place: self._look_at(place, rows) for place in places}

    def _look_at(self, place: Place, rows: dict[str, str]) -> str | None:
        kind, name = place
        if kind == "file":
            path = self.files / name
            return path.read_text() if path.exists() else None
        return rows.get(name) if kind == "row" else self.shelf.items.get(name)


@dataclass(kw_only=True, slots=True)
class Pair:
    """Two agents of two people, the places that both change, and what they have changed so far."""

    number: int
    testbed: Testbed
    rng: random.Random
    world: dict[Place, str | None]
    changes: list[Change] = field(default_factory=list)
    records: list[UndoRecord] = field(default_factory=list)
    refusals: int = 0
    calls: Iterator[int] = field(default_factory=lambda: iter(range(10_000)))

    async def run(self) -> None:
        agents = [self._connect(user, agent=f"agent-of-{user}") for user in ("ana", "bo")]
        for _ in range(_CALLS):
            which = self.rng.randrange(2)
            await self._change_something(agents[which], f"pair-{self.number}-{which}")
        people = [self._connect(user) for user in ("ana", "bo")]
        idle = 0
        for turn in range(12):
            which = turn % 2
            idle = 0 if await self._undo(people[which], f"pair-{self.number}-{which}") else idle + 1
            if idle == 2:
                break
        for each in (*agents, *people):
            each.close()

    def _connect(self, user: str, agent: str | None = None) -> HttpConnection:
        scopes = _SCOPES if agent else (*_SCOPES, "deputize:undo")
        token = self.testbed.gateway.issuer.issue_token(user, agent=agent, scopes=scopes)
        return HttpConnection.for_url(self.testbed.gateway.url, token=token)

    async def _change_something(self, agent: HttpConnection, session: str) -> None:
        tool, arguments, after = self._draw_call()
        body = {"tool": tool, "arguments": arguments, "session": session}
        answer = await agent.post("/v1/calls", body, idempotency_key=f"{session}-{next(self.calls)}")
        envelope = answer.json()
        if envelope.get("state") != "succeeded":
            self.refusals += 1
            return
        before = {place: self.world[place] for place in after}
        self.changes.append(
            Change(
                call_id=envelope["call_id"], session=session, before=before, after=after,
                is_reversible=tool != "rows.stamp",
            )
        )  # fmt: skip
        self.world |= after

    def _draw_call(self) -> tuple[str, dict[str, Any], dict[Place, str | None]]:
        """Draw a call that the places allow, and what it will leave."""
        place = self.rng.choice(list(self.world))
        (kind, name), held, value = place, self.world[place], self.rng.choice("abcdefgh") * self.rng.randint(1, 9)
        if kind == "item":
            item = None if held is not None and self.rng.random() < 0.3 else value
            return "shelf.put", {"name": name, "body": {"value": item}}, {place: item}
        if kind == "row":
            if held is None:
                return "rows.add", {"row_id": name, "value": value}, {place: value}
            if self.rng.random() < 0.1:
                return "rows.stamp", {"row_id": name}, {place: held + "!"}
            if self.rng.random() < 0.3:
                return "rows.remove", {"row_id": name}, {place: None}
            return "rows.change", {"row_id": name, "value": value}, {place: value}
        digest = "absent" if held is None else hashlib.sha256(held.encode()).hexdigest()
        free = [each for each in self.world if each[0] == "file" and self.world[each] is None]
        if held is not None and free and self.rng.random() < 0.3:
            target = self.rng.choice(free)
            arguments = {"path": name, "to": target[1], "expected_sha256": digest}
            return "files.move", arguments, {place: None, target: held}
        if held is not None and self.rng.random() < 0.3:
            return "files.delete", {"path": name, "expected_sha256": digest}, {place: None}
        return "files.write", {"path": name, "content": value, "expected_sha256": digest}, {place: value}

    async def _undo(self, person: HttpConnection, session: str) -> bool:
        """Undo a session as far as it goes; tell whether anything was to be taken back."""
        undoable = find_undoable(self.changes, session)
        expected = take_back(self.world, undoable)
        plan = (await person.post("/v1/undo/plan", {"session": session})).json()
        ready_ids = frozenset(each["call_id"] for each in plan["steps"] if each["verdict"] == "ready")
        made_ids: set[str] = set()
        while plan["ready"]:
            answer = (await person.post("/v1/undo", {"session": session, "digest": plan["digest"]})).json()
            done = [each["undone_call_id"] for each in answer["made"] if each["state"] == "succeeded"]
            made_ids |= set(done)
            plan = answer["left"]
            if not done:
                break
        world = await self.testbed.look(self.world)
        self.records.append(
            UndoRecord(
                expected_ids=frozenset(each.call_id for each in undoable), ready_ids=ready_ids,
                made_ids=frozenset(made_ids), expected_world=expected, world=world,
            )
        )  # fmt: skip
        self.changes = [each for each in self.changes if each not in undoable]
        self.world = expected
        return bool(undoable or made_ids)


async def prove(sandbox: Sandbox) -> Verdict:
    testbed = await _start(sandbox)
    pairs = await run_pairs(testbed, range(sandbox.pick_size(quick=20, full=150)))
    records = [record for pair in pairs for record in pair.records]
    figures = compute_figures(records)
    sandbox.log(f"{len(pairs)} pairs: {figures}")
    await restart_as_variant(testbed.gateway, "undo_blind")
    blind = await run_pairs(testbed, range(1000, 1006))
    blind_figures = compute_figures([record for pair in blind for record in pair.records])
    sandbox.log(f"without a look at later writers: {blind_figures}")
    return Verdict(
        figures={
            **figures,
            "sessions": 2 * len(pairs),
            "changes": sum(_CALLS - pair.refusals for pair in pairs),
            "refused_calls": sum(pair.refusals for pair in pairs),
        },
        controls={"undo_blind": blind_figures["wrong_places"] > 0},
    )


async def run_pairs(testbed: Testbed, numbers: range) -> list[Pair]:
    slots = asyncio.Semaphore(_PAIRS_AT_ONCE)

    async def run(number: int) -> Pair:
        rng = random.Random(number)
        names = {"file": [f"p{number}/f{n}" for n in range(3)]}
        names |= {kind: [f"p{number}-{kind}{n}" for n in range(2)] for kind in ("row", "item")}
        places: World = {(kind, name): None for kind, each in names.items() for name in each}
        pair = Pair(number=number, testbed=testbed, rng=rng, world=dict(places))
        async with slots:
            await pair.run()
        return pair

    return await asyncio.gather(*map(run, numbers))


async def _start(sandbox: Sandbox) -> Testbed:
    postgres = await sandbox.start_postgres()
    pool = await asyncpg.create_pool(postgres.dsn, min_size=1, max_size=2)
    sandbox.add_cleanup(pool.close)
    await pool.execute("create table proof_rows (id text primary key, value text not null)")
    files = sandbox.folder / "workspace"
    files.mkdir()
    shelf = Shelf()
    server = await asyncio.start_server(shelf.serve, "127.0.0.1", 0)
    document = sandbox.folder / "shelf.yaml"
    document.write_text(MANIFEST)
    digest = hashlib.sha256(document.read_bytes()).hexdigest()
    port = server.sockets[0].getsockname()[1]
    settings = (
        f'[builtin.files]\nfolder = "{files}"\n'
        f'[[services]]\nname = "shelf"\nkind = "manifest"\ndocument = "{document}"\nsha256 = "{digest}"\n'
        f'url = "http://127.0.0.1:{port}"\nscopes = ["shelf:write"]\n'
    )
    gateway = await start_gateway(
        sandbox, postgres.dsn, create_issuer(), tool_folder=_TOOLS, settings=settings, env={"PROOF_ROWS": postgres.dsn}
    )
    return Testbed(gateway=gateway, files=files, rows=pool, shelf=shelf)
