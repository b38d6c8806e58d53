"""Pairs of agents change files, branches of a repository, rows and the items of a REST service, each in a session, on
the same places; then people undo the sessions in turn until nothing more can be taken back.

What has to be there after each undo follows from the order of the calls. Each write that has a preview is previewed
first, and sometimes overtaken by the other agent before it is made. The control is a gateway that does not look for who
changed the same thing later.
"""

import asyncio
import hashlib
import random
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import asyncpg

from proofs.kit.gateway import GatewayHandle, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.http_client import HttpConnection
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox
from proofs.undo.draws import NEW_HEAD, Branch, DrawnCall, Draws
from proofs.undo.judge import (
    SQL_TABLE,
    Change,
    Place,
    PreviewRecord,
    Shown,
    UndoRecord,
    compute_figures,
    compute_preview_figures,
    describe_change,
    describe_preview,
    find_undoable,
    take_back,
)
from proofs.undo.shelf import MANIFEST, Shelf

NAME = "undo"
PROMISE = (
    "An undone session leaves what was there before, or its plan had named what stays; nothing later is overwritten, "
    "and a preview shows what happens."
)

_CALLS = 24
_PAIRS_AT_ONCE = 6
_TOOLS = Path(__file__).parent / "tools"
_SCOPES = (
    "proof:write", "files:read", "files:write", "git:read", "git:write", "shelf:write", "sql:read", "sql:write",
)  # fmt: skip
# What is in the first commit of the repository.
_BASE: dict[str, str | None] = {"a.txt": "base", "b.txt": None}
_ITEMS = f"""
create role proof_reader login password 'reader';
create role proof_writer login password 'writer';
revoke all on database proof_sql from public;
grant connect on database proof_sql to proof_reader, proof_writer;
revoke create on schema public from public;
grant usage on schema public to proof_reader, proof_writer;
create table {SQL_TABLE} (id integer primary key, value text not null);
grant select on {SQL_TABLE} to proof_reader;
grant select, insert, update, delete on {SQL_TABLE} to proof_writer;
"""

# How often one waits until others have made their plans.
_MOST_TURNS = 500


@dataclass(kw_only=True, slots=True)
class Testbed:
    gateway: GatewayHandle
    files: Path
    rows: asyncpg.Pool
    items: asyncpg.Pool
    shelf: Shelf
    base: str

    @property
    def git(self) -> Path:
        """The folder of the branches, once one has begun."""
        (folder,) = (self.gateway.folder / ".deputize" / "git").iterdir()
        return folder

    async def look(self, places: Iterable[Place]) -> dict[Place, str | None]:
        """Look at what is really there."""
        places = list(places)
        rows = {row["id"]: row["value"] for row in await self.rows.fetch("select id, value from proof_rows")}
        items = {row["id"]: row["value"] for row in await self.items.fetch(f"select id::text, value from {SQL_TABLE}")}
        return {
            (kind, name): rows.get(name)
            if kind == "row"
            else items.get(name)
            if kind == "sql"
            else self.shelf.items.get(name)
            if kind == "item"
            else self._read(kind, name)
            for kind, name in places
        }

    def _read(self, kind: str, name: str) -> str | None:
        if kind == "file":
            path = self.files / name
        elif kind == "branch":
            path = self.git / "store" / "refs" / "heads" / name
        else:
            _, branch, inner = name.split("/", 2)
            path = self.git / "branches" / branch / "tree" / inner
        if not path.exists():
            return None
        return path.read_text().removesuffix("\n") if kind == "branch" else path.read_text()

    def list_strays(self, places: Iterable[Place]) -> list[str]:
        """List the files of a pair that are at none of its places."""
        names = {name for kind, name in places if kind in ("file", "gitfile")}
        folders = {self.files / name.partition("/")[0]: "" for kind, name in places if kind == "file"}
        for kind, name in places:
            if kind == "branch":
                folders[self.git / "branches" / name.partition("/")[2] / "tree"] = f"{name}/"
        return [
            str(path)
            for folder, prefix in folders.items()
            for path in folder.rglob("*")
            if path.is_file() and ".deputize" not in path.parts[len(folder.parts):]
            and f"{prefix or folder.name + '/'}{path.relative_to(folder)}" not in names
        ]  # fmt: skip


@dataclass(kw_only=True, slots=True)
class Pair:
    """Two agents of two people, the places that both change, and what they have changed so far."""

    number: int
    testbed: Testbed
    draws: Draws
    world: dict[Place, str | None]
    changes: list[Change] = field(default_factory=list)
    records: list[UndoRecord] = field(default_factory=list)
    previews: list[PreviewRecord] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    made: int = 0
    undone_tools: set[str] = field(default_factory=set)
    overtaken: int = 0
    overtaken_that_ran: int = 0
    strays: list[str] = field(default_factory=list)
    calls: Iterator[int] = field(default_factory=lambda: iter(range(10_000)))

    async def run(self) -> None:
        agents = [self._connect(user, agent=f"agent-of-{user}") for user in ("ana", "bo")]
        for _ in range(_CALLS):
            which = self.draws.rng.randrange(2)
            await self._take_turn(agents, which)
        people = [self._connect(user) for user in ("ana", "bo")]
        idle = 0
        for turn in range(12):
            which = turn % 2
            idle = 0 if await self._undo(people[which], self._name_session(which)) else idle + 1
            if idle == 2:
                break
        self.strays = self.testbed.list_strays(self.world)
        for each in (*agents, *people):
            each.close()

    def _name_session(self, which: int) -> str:
        return f"pair-{self.number}-{which}"

    def _connect(self, user: str, agent: str | None = None) -> HttpConnection:
        scopes = _SCOPES if agent else (*_SCOPES, "deputize:undo")
        token = self.testbed.gateway.issuer.issue_token(user, agent=agent, scopes=scopes)
        return HttpConnection.for_url(self.testbed.gateway.url, token=token)

    async def _take_turn(self, agents: list[HttpConnection], which: int) -> None:
        """Let an agent make a call, after its preview, unless the other one is faster now and then."""
        call = self.draws.draw(self.world)
        promised = await self._preview(agents[which], call) if call.has_preview else None
        if call.is_guarded and self.draws.rng.random() < 0.1:
            ((place, _),) = call.after.items()
            held = self.world[place]
            await self._change(agents[1 - which], 1 - which, self.draws.draw(self.world, place))
            if self.world[place] != held:
                envelope = await self._call(agents[which], which, call)
                self.overtaken += 1
                self.overtaken_that_ran += envelope.get("state") == "succeeded"
                return
        await self._change(agents[which], which, call, promised)

    async def _preview(self, agent: HttpConnection, call: DrawnCall) -> Shown:
        body = {"tool": call.tool, "arguments": call.arguments, "dry_run": True}
        envelope = (await agent.post("/v1/calls", body)).json()
        if envelope.get("state") != "succeeded" or envelope["would"]["behavior"] != "run":
            return {call.tool: ("refused", str(envelope)[:500])}
        return describe_preview(call.tool, envelope["preview"])

    async def _call(self, agent: HttpConnection, which: int, call: DrawnCall) -> dict[str, Any]:
        session = self._name_session(which)
        body = {"tool": call.tool, "arguments": call.arguments, "session": session}
        answer = await agent.post("/v1/calls", body, idempotency_key=f"{session}-{next(self.calls)}")
        envelope: dict[str, Any] = answer.json()
        return envelope

    async def _change(self, agent: HttpConnection, which: int, call: DrawnCall, promised: Shown | None = None) -> None:
        seen = {} if promised is None else await self.testbed.look(call.after)
        envelope = await self._call(agent, which, call)
        if envelope.get("state") != "succeeded":
            self.refusals.append(f"{call.tool}: {str(envelope.get('error'))[:300]}")
            return
        after = {
            place: envelope["result"]["head"] if value == NEW_HEAD else value for place, value in call.after.items()
        }
        if promised is not None:
            happened = describe_change(call.tool, seen, await self.testbed.look(call.after), call.differences)
            self.previews.append(PreviewRecord(promised=promised, happened=happened))
        if call.tool == "git.commit":
            branch = self.draws.branch
            head, parent = after[branch.place], self.world[branch.place]
            assert head is not None
            assert parent is not None
            branch.add_commit(head, parent, self.world)
        before = {place: self.world[place] for place in after}
        self.made += 1
        self.changes.append(
            Change(
                call_id=envelope["call_id"], session=self._name_session(which), before=before, after=after,
                tool=call.tool, is_reversible=call.is_reversible,
            )
        )  # fmt: skip
        self.world |= after

    async def _undo(self, person: HttpConnection, session: str) -> bool:
        """Undo a session as far as it goes; tell whether anything was to be taken back."""
        undoable = find_undoable(self.changes, session)
        expected = take_back(self.world, undoable)
        plan = await _ask_in_turn(person, "/v1/undo/plan", {"session": session})
        ready_ids = frozenset(each["call_id"] for each in plan["steps"] if each["verdict"] == "ready")
        made_ids: set[str] = set()
        while plan["ready"]:
            answer = await _ask_in_turn(person, "/v1/undo", {"session": session, "digest": plan["digest"]})
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
        self.undone_tools |= {each.tool for each in undoable if each.call_id in made_ids}
        self.changes = [each for each in self.changes if each not in undoable]
        self.world = expected
        return bool(undoable or made_ids)


async def prove(sandbox: Sandbox) -> Verdict:
    testbed = await _start(sandbox)
    pairs = await run_pairs(testbed, range(sandbox.pick_size(quick=20, full=200)))
    records = [record for pair in pairs for record in pair.records]
    previews = [record for pair in pairs for record in pair.previews]
    figures = {
        **compute_figures(records),
        **compute_preview_figures(previews),
        "overtaken_calls": sum(pair.overtaken for pair in pairs),
        "overtaken_calls_that_ran": sum(pair.overtaken_that_ran for pair in pairs),
        "stray_files": sum(len(pair.strays) for pair in pairs),
    }
    sandbox.log(f"{len(pairs)} pairs: {figures}")
    await restart_as_variant(testbed.gateway, "undo_blind")
    blind = await run_pairs(testbed, range(1000, 1006))
    blind_figures = compute_figures([record for pair in blind for record in pair.records])
    sandbox.log(f"without a look at later writers: {blind_figures}")
    return Verdict(
        figures={
            **figures,
            "sequences": len(pairs),
            "sessions": 2 * len(pairs),
            "changes": sum(pair.made for pair in pairs),
            "tools_taken_back": len({tool for pair in pairs for tool in pair.undone_tools}),
            "refused_calls": sum(len(pair.refusals) for pair in pairs),
        },
        controls={"undo_blind": blind_figures["wrong_places"] > 0},
        notes=_describe(pairs),
    )


def _describe(pairs: list[Pair]) -> list[str]:
    """Describe what was found, for the one who has to mend it."""
    notes = []
    for pair in pairs:
        notes += [f"pair {pair.number}: refused: {each}" for each in pair.refusals]
        notes += [f"pair {pair.number}: stray: {each}" for each in pair.strays]
        notes += [
            f"pair {pair.number}: previewed {each.promised}, and then {each.happened}"
            for each in pair.previews
            if each.promised != each.happened
        ]
        notes += [
            f"pair {pair.number}: undo {number}: {place} is {each.world[place]!r} instead of {value!r}; expected "
            f"{len(each.expected_ids)} calls, ready {len(each.ready_ids)}, made {len(each.made_ids)}"
            for number, each in enumerate(pair.records)
            for place, value in each.expected_world.items()
            if each.world[place] != value
        ]
        notes += [
            f"pair {pair.number}: undo {number}: ready and not possible {sorted(each.ready_ids - each.expected_ids)}, "
            f"possible and not ready {sorted(each.expected_ids - each.ready_ids)}"
            for number, each in enumerate(pair.records)
            if each.ready_ids != each.expected_ids
        ]
    return notes[:60]


async def _ask_in_turn(person: HttpConnection, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask, and again while a tenant makes as many plans as it may at once."""
    answer = await person.post(path, body)
    for _ in range(_MOST_TURNS):
        if answer.status != HTTPStatus.TOO_MANY_REQUESTS:
            break
        await asyncio.sleep(answer.json()["error"]["retry_after_ms"] / 1000)
        answer = await person.post(path, body)
    fields: dict[str, Any] = answer.json()
    return fields


async def run_pairs(testbed: Testbed, numbers: range) -> list[Pair]:
    slots = asyncio.Semaphore(_PAIRS_AT_ONCE)

    async def run(number: int) -> Pair:
        names = {"file": [f"p{number}/f{n}" for n in range(3)], "sql": [str(10 * number + n) for n in range(2)]}
        names |= {kind: [f"p{number}-{kind}{n}" for n in range(2)] for kind in ("row", "item")}
        branch = Branch(name=f"agent/p{number}", base=testbed.base)
        branch.trees[testbed.base] = {("gitfile", f"{branch.name}/{name}"): value for name, value in _BASE.items()}
        places = [(kind, name) for kind, each in names.items() for name in each]
        world: dict[Place, str | None] = dict.fromkeys((*places, branch.place, *branch.files))
        draws = Draws(rng=random.Random(number), branch=branch)
        pair = Pair(number=number, testbed=testbed, draws=draws, world=world)
        async with slots:
            await pair.run()
        return pair

    return await asyncio.gather(*map(run, numbers))


async def _start(sandbox: Sandbox) -> Testbed:
    postgres = await sandbox.start_postgres()
    rows = await asyncpg.create_pool(postgres.dsn, min_size=1, max_size=2)
    sandbox.add_cleanup(rows.close)
    await rows.execute("create table proof_rows (id text primary key, value text not null)")
    await rows.execute("create database proof_sql")
    items_dsn = postgres.dsn_for("proof_sql")
    items = await asyncpg.create_pool(items_dsn, min_size=1, max_size=2)
    sandbox.add_cleanup(items.close)
    await items.execute(_ITEMS)
    files = sandbox.folder / "workspace"
    files.mkdir()
    repository = sandbox.folder / "repository"
    base = _make_repository(repository)
    shelf = Shelf()
    server = await asyncio.start_server(shelf.serve, "127.0.0.1", 0)
    document = sandbox.folder / "shelf.yaml"
    document.write_text(MANIFEST)
    digest = hashlib.sha256(document.read_bytes()).hexdigest()
    port = server.sockets[0].getsockname()[1]
    address = items_dsn.partition("@")[2]
    settings = (
        f'[builtin.files]\nfolder = "{files}"\n'
        f'[builtin.git]\nrepository = "{repository}"\n'
        f'[builtin.sql]\nurl = "postgresql://proof_reader:reader@{address}"\n'
        f'change_url = "postgresql://proof_writer:writer@{address}"\nchange_tables = ["{SQL_TABLE}"]\n'
        f'[[services]]\nname = "shelf"\nkind = "manifest"\ndocument = "{document}"\nsha256 = "{digest}"\n'
        f'url = "http://127.0.0.1:{port}"\nscopes = ["shelf:write"]\n'
    )
    gateway = await start_gateway(
        sandbox, postgres.dsn, create_issuer(), tool_folder=_TOOLS, settings=settings, env={"PROOF_ROWS": postgres.dsn}
    )
    return Testbed(gateway=gateway, files=files, rows=rows, items=items, shelf=shelf, base=base)


def _make_repository(folder: Path) -> str:
    """Make a repository with one commit, and return its id."""
    folder.mkdir()
    for name, content in _BASE.items():
        if content is not None:
            (folder / name).write_text(content)
    git = ("git", "-C", str(folder), "-c", "user.name=Ann", "-c", "user.email=ann@example.com")
    for arguments in (("init", "--quiet", "--initial-branch=main"), ("add", "."), ("commit", "--quiet", "-m", "Begin")):
        subprocess.run((*git, *arguments), check=True)
    result = subprocess.run((*git, "rev-parse", "HEAD"), check=True, capture_output=True, text=True)
    return result.stdout.strip()
