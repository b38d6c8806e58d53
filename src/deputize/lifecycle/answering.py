"""Answering what a run's server asked, by the run: for whoever follows it by its id and holds no round.

Each answer goes into a call of its own, so a run that was asked back is followed along the calls that continue it. Its
questions may be answered one by one: what was said is kept, sealed, until nothing is left open; then the next call is
made, through the whole lifecycle. Above: `doors/mcp/tasks.py`. Below: `rounds.py`, `run.py`, `calls.py`.
"""

import hashlib
from typing import Any, Final, NamedTuple

import asyncpg
import orjson

from deputize.core.caller import Caller
from deputize.core.errors import CallNotFound, NotRetryable
from deputize.core.events import State
from deputize.core.outcome import Outcome
from deputize.core.questions import Answers, Question
from deputize.lifecycle.calls import Calls
from deputize.lifecycle.record import claim_scope
from deputize.lifecycle.recorded import WrittenInput
from deputize.lifecycle.rounds import fitting, round_key
from deputize.lifecycle.run import Lifecycle
from deputize.store.keys import KeySet
from deputize.store.queries import load

_SQL = load("answers")
_CALLS = load("calls")
_KIND: Final = "answers"
# A server that asks without end is not followed without end.
_MOST_ROUNDS: Final = 100


class Standing(NamedTuple):
    """The newest of the calls that a run went on as: its row and envelope, and which questions of it are open."""

    row: asyncpg.Record
    envelope: dict[str, Any]
    open: dict[str, Question]


class Answering:
    def __init__(self, lifecycle: Lifecycle, calls: Calls) -> None:
        self._rooms, self._lifecycle, self._calls = lifecycle.rooms, lifecycle, calls

    async def standing(self, caller: Caller, call_id: str) -> Standing:
        """Where a run stands, however often it was asked back since."""
        for _ in range(_MOST_ROUNDS):
            row = await self._calls.row(caller, call_id)
            if row is None:
                break
            following = await self._continued_by(row)
            if following is None:
                return await self._shown(caller, row)
            call_id = following
        raise CallNotFound("there is no such run, or it is not yours", details={"call_id": call_id[:64]})

    async def _continued_by(self, row: asyncpg.Record) -> str | None:
        if State(row["state"]) is not State.NEEDS_INPUT:
            return None
        scope = claim_scope(row["caller_user"], row["caller_agent"], row["tool"])
        key = hashlib.sha256(round_key(str(row["id"])).encode()).digest()
        async with self._rooms.store.writing() as connection:
            found = await connection.fetchval(_SQL["continued_by"], row["tenant"], scope, key)
        return None if found is None else str(found)

    async def _shown(self, caller: Caller, row: asyncpg.Record) -> Standing:
        call_id = str(row["id"])
        envelope: dict[str, Any] = orjson.loads((await self._calls.show(caller, call_id)).body)
        asks = envelope.get("asks")
        if asks is None or row["cancel_asked"] is not None:
            return Standing(row, envelope, {})
        async with self._rooms.store.writing() as connection:
            box = await connection.fetchval(_SQL["answers_so_far"], caller.tenant, call_id)
        said, questions = _read(await self._keys(caller.tenant), call_id, box), asks["questions"]
        left = {name: each for name, each in questions.items() if name not in said}
        # Nothing left open and no call that goes on: whoever took the last answer died with it, or was refused. What
        # was said can be said again; until a call is made of it, it binds nobody.
        return Standing(row, envelope, left or questions)

    async def answer(self, caller: Caller, call_id: str, responses: dict[str, Any]) -> Outcome | None:
        """Takes answers to any of the open questions. The call that goes on once there is one to each; None before."""
        row, envelope, left = await self.standing(caller, call_id)
        fits = fitting(left, responses)
        if not fits:
            return None
        asked_by, asks = str(row["id"]), envelope["asks"]
        keys = await self._keys(caller.tenant)
        written = await self._written(caller, asked_by, keys)
        async with self._rooms.store.writing() as connection:
            await connection.fetchval(_SQL["lock_questions"], caller.tenant, asked_by)
            box = await connection.fetchval(_SQL["answers_so_far"], caller.tenant, asked_by)
            said = {**_read(keys, asked_by, box), **fits}
            sealed = keys.seal(asked_by, _KIND, orjson.dumps(said))
            await connection.execute(_SQL["keep_answers"], caller.tenant, asked_by, sealed)
        if asks["questions"].keys() - said.keys():
            return None
        answers = Answers(round=asks["round"], responses=said)
        request = written.request(row["tool"], row["version"], row["session"], mode="async", answers=answers)
        return await self._lifecycle.run(caller, request)

    async def _written(self, caller: Caller, call_id: str, keys: KeySet) -> WrittenInput:
        """What was asked for. Only who made a call has it gone on with, not even an administrator."""
        async with self._rooms.store.reading(caller.tenant) as connection:
            row = await connection.fetchrow(_CALLS["call_to_retry"], caller.tenant, call_id)
        if row is None or not caller.made(row["caller_user"], row["caller_agent"]):
            raise CallNotFound("there is no such run, or it is not yours", details={"call_id": call_id[:64]})
        if row["input"] is None:
            raise NotRetryable("its arguments were not kept: make the call again and answer it there")
        return WrittenInput(keys.open(call_id, "input", row["input"]))

    async def _keys(self, tenant: str) -> KeySet:
        return self._rooms.keys.ready(tenant) or await self._rooms.keys.load(self._rooms.store, tenant)


def _read(keys: KeySet, call_id: str, box: bytes | None) -> dict[str, Any]:
    said: dict[str, Any] = {} if box is None else orjson.loads(keys.open(call_id, _KIND, box))
    return said
