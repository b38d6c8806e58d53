"""The database refuses a change of a call's state that is not among its transitions, from every process."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deputize.core.errors import Problem
from deputize.core.states import STORED_TRANSITIONS, State
from deputize.store import queries
from deputize.store.commit_rows import CommitResult
from tests.integration.store.sample_rows import fetch_states, make_closing, make_opening, make_tenants, open_writer

pytestmark = pytest.mark.requirement("INV-2")

UPDATE = "update deputize.calls set state = $2 where id = $1"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def owner(module_database: str) -> AsyncIterator[asyncpg.Connection]:
    await make_tenants(module_database, "acme")
    connection = await asyncpg.connect(module_database)
    yield connection
    await connection.close()


async def _open_call(dsn: str) -> str:
    opening = make_opening()
    async with open_writer(dsn) as writer:
        await writer.put(opening)
    return opening.call_id


async def test_the_trigger_knows_exactly_the_stored_transitions(owner: asyncpg.Connection) -> None:
    definition = await owner.fetchval(
        "select pg_get_triggerdef(oid) from pg_trigger where tgname = 'calls_refuse_transition'"
        " and tgrelid = 'deputize.calls'::regclass"
    )
    known_pairs = set(re.findall(r"'([a-z_]+>[a-z_]+)'", definition))
    assert known_pairs == {f"{before}>{after}" for before, states in STORED_TRANSITIONS.items() for after in states}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(states=st.lists(st.sampled_from(State), min_size=1, max_size=12))
async def test_a_sequence_of_states_is_written_up_to_its_first_illegal_step(
    owner: asyncpg.Connection, module_database: str, states: list[State]
) -> None:
    call_id, current = await _open_call(module_database), State.RUNNING
    for following in states:
        if following is current or following in STORED_TRANSITIONS.get(current, ()):
            await owner.execute(UPDATE, call_id, following)
            current = following
        else:
            with pytest.raises(asyncpg.CheckViolationError, match=f"{current} cannot become {following}"):
                await owner.execute(UPDATE, call_id, following)
        assert await owner.fetchval("select state from deputize.calls where id = $1", call_id) == current


async def test_an_illegal_outcome_fails_alone_and_changes_nothing(
    owner: asyncpg.Connection, module_database: str
) -> None:
    first, second = make_opening(), make_opening()
    async with open_writer(module_database) as writer:
        await writer.put(first)
        await writer.put(second)
        illegal, legal = await asyncio.gather(
            writer.put(make_closing(first.call_id, "awaiting_approval")),
            writer.put(make_closing(second.call_id)),
            return_exceptions=True,
        )
    states = await fetch_states(owner)
    assert isinstance(illegal, Problem)
    assert isinstance(legal, CommitResult)
    assert (states[first.call_id], states[second.call_id]) == ("running", "succeeded")


def test_calls_are_inserted_as_running_only() -> None:
    schema = (Path(queries.__file__).parent.parent / "schema.sql").read_text()
    inserts = re.findall(r"insert into deputize\.calls .*?select (.*?)from", schema, re.DOTALL)
    assert len(inserts) >= 2
    assert all(re.match(r"o\.tenant, o\.id, 'running',", each) for each in inserts)
