"""Time asks more people, reminds them, and says no in the end. It never says yes. PostgreSQL's clock is the time."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deputize.core.clock import Clock
from deputize.core.errors import ApprovalExpired, NotAnApprover, TicketNotFound
from deputize.lifecycle.approvals.clockwork import AT_ONCE, MOST_REMINDERS, PUT_OFF_SECONDS, Clockwork
from proofs.waiting.crowd import Crowd, fill
from tests.integration.approvals.house import RULES, House, open_house
from tests.integration.lifecycle.lab import Lab, body, open_lab, slug
from tests.integration.lifecycle.tools import effects_of

pytestmark = pytest.mark.requirement("GOV-3")

_AGE = """
    update deputize.approvals set opened_at = opened_at - make_interval(secs => $2),
        expires_at = expires_at - make_interval(secs => $2), next_at = next_at - make_interval(secs => $2) where id = $1
"""
_NOTICES = "select grp, kind from deputize.notices where ticket = $1 order by created_at, grp"
_OVER = "select count(*) from deputize.approvals where expires_at <= now() and state = 'open'"
_ENDS = """
    select a.state, k.state as call_state, k.error, s.box is not null as told, count(e.id) as entries
    from deputize.approvals a join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
    left join deputize.sealed s on s.tenant = k.tenant and s.id = k.id and s.kind = 'outcome'
    left join deputize.audit_entries e on e.tenant = k.tenant and e.call_id = k.id
    where a.expires_at <= now() group by a.tenant, a.id, a.state, k.state, k.error, s.box
"""
_SUM = """
    insert into deputize.approvals (tenant, id, call_id, binding, demands, shown, chain, tool, group_key, levels,
        opened_at, expires_at, reminded)
    select 'sums', gen_random_uuid(), gen_random_uuid(), '', '[]', '', '{}', 't', 'g', $2, opened_at,
        opened_at + make_interval(secs => $3), $4
    from (select now() - make_interval(secs => $1) as opened_at) as opened
"""
_ENDED = ("expired", "denied", "approval-expired", True, 1)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def house(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with open_house(module_database, tmp_path_factory.mktemp("house"), working=False, sweep_seconds=60) as opened:
        yield opened


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def _nothing_is_due(house: House) -> None:
    """What earlier tests left does not come up in this one."""
    await house.lab.db.execute("update deputize.approvals set next_at = null; delete from deputize.notices")


async def age(house: House, ticket: str, seconds: float) -> None:
    """As if so much time had passed."""
    await house.lab.db.execute(_AGE, ticket, float(seconds))


async def sweep(house: House) -> int:
    return await Clockwork(house.lab.rooms).sweep()


async def told(house: House, ticket: str) -> list[tuple[str, str]]:
    return [(row["grp"], row["kind"]) for row in await house.lab.db.fetch(_NOTICES, ticket)]


async def due_in(house: House, ticket: str) -> timedelta:
    row = await house.ticket(ticket)
    waits: timedelta = row["next_at"] - row["opened_at"]
    return waits


async def test_nothing_is_looked_at_before_it_is_due(house: House) -> None:
    _, ticket = await house.asked("put", "c1")
    assert await sweep(house) == 0
    await age(house, ticket, 60)
    assert await sweep(house) == 1
    assert await due_in(house, ticket) == timedelta(seconds=1800)
    assert await told(house, ticket) == [("approvers", "asked")]
    assert await sweep(house) == 0


async def test_people_are_reminded_so_often_and_no_more(house: House) -> None:
    _, ticket = await house.asked("put", "c2")
    for round_ in range(1, 30):
        await age(house, ticket, 1800)
        await sweep(house)
        assert len(await told(house, ticket)) == 1 + min(round_, MOST_REMINDERS)
    assert set(await told(house, ticket)) == {("approvers", "asked"), ("approvers", "reminder")}
    row = await house.ticket(ticket)
    assert (row["state"], row["next_at"]) == ("open", row["expires_at"])


async def test_what_nobody_looked_at_for_long_is_brought_to_mind_once(house: House) -> None:
    _, ticket = await house.asked("put", "c3")
    await age(house, ticket, 5 * 1800 + 20)
    await sweep(house)
    assert await told(house, ticket) == [("approvers", "asked"), ("approvers", "reminder")]
    assert await due_in(house, ticket) == timedelta(seconds=6 * 1800)


async def test_when_nobody_decides_more_people_are_asked_beside_the_first(house: House) -> None:
    _, ticket = await house.asked("erase", "c4")
    elder = await house.person("elda", groups=("elders",))
    with pytest.raises((NotAnApprover, TicketNotFound)):
        await house.approvals.approve(elder, ticket)
    await age(house, ticket, 3600)
    assert await sweep(house) == 1
    assert (await house.ticket(ticket))["level"] == 1
    assert sorted(await told(house, ticket)) == [
        ("elders", "escalated"), ("keepers", "asked"), ("keepers", "reminder"),
    ]  # fmt: skip
    assert (await house.approvals.approve(elder, ticket))["state"] == "open"
    keeper = await house.person("kim", groups=("keepers",))
    assert (await house.approvals.approve(keeper, ticket))["state"] == "approved"
    assert (await house.ticket(ticket))["next_at"] is None


async def test_a_look_that_comes_late_asks_everybody_who_is_due(house: House) -> None:
    _, ticket = await house.asked("erase", "c5")
    await age(house, ticket, 86_000)
    await sweep(house)
    assert ("elders", "escalated") in await told(house, ticket)
    assert (await house.ticket(ticket))["state"] == "open"


async def test_what_nobody_decides_is_denied_and_says_so(house: House) -> None:
    call, ticket = await house.asked("put", "c6")
    await age(house, ticket, 86_401)
    # Before anybody sweeps, it is too late already.
    with pytest.raises(ApprovalExpired):
        await house.approvals.approve(await house.person("bo"), ticket)
    assert await sweep(house) == 1
    row = await house.ticket(ticket)
    assert (row["state"], row["next_at"]) == ("expired", None)
    listed = await house.lab.db.fetch("select state, resolution from deputize.tickets where id = $1", ticket)
    assert [tuple(each) for each in listed] == [("expired", "expired")]
    assert await house.lab.state(call) == "denied"
    again = await house.lab.call("put", "c6", key="put-c6")
    assert (slug(again), again.replayed, body(again)["error"]["details"]["ticket_id"]) == (
        "approval-expired", True, ticket,
    )  # fmt: skip
    entry = (await house.lab.entries(call))[-1]
    assert (entry["kind"], entry["outcome"], entry["error"], entry["rules"], entry["subject"]) == (
        "outcome", "denied", "E3226", ["nobody-decided"], ticket,
    )  # fmt: skip
    assert await house.lab.db.fetchval("select count(*) from deputize.approval_groups where id = $1", ticket) == 0
    with pytest.raises(ApprovalExpired):
        await house.approvals.approve(await house.person("bo"), ticket)
    assert effects_of("c6") == []
    assert await sweep(house) == 0


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_gateway_whose_clock_is_off_ends_nothing_early_and_nothing_late(house: House, hours: int) -> None:
    def shifted() -> int:
        return Clock().epoch_ms() + hours * 3_600_000

    _, early = await house.asked("put", f"c7-{hours}-early")
    _, late = await house.asked("put", f"c7-{hours}-late")
    await age(house, early, 86_400 - 600)
    await age(house, late, 86_400)
    async with open_lab(house.lab.dsn, house.lab.folder, clock=replace(Clock(), epoch_ms=shifted)) as off:
        assert await Clockwork(off.rooms).sweep() == 2
    # That gateway brought the rules of its own settings.
    await house.put_rules(RULES)
    assert (await house.ticket(early))["state"] == "open"
    assert (await house.ticket(late))["state"] == "expired"


async def test_who_dies_after_taking_leaves_it_to_the_next_and_nobody_decides_meanwhile(house: House) -> None:
    call, ticket = await house.asked("put", "c8")
    await age(house, ticket, 86_401)
    assert len(await Clockwork(house.lab.rooms).take()) == 1
    assert (await house.ticket(ticket))["state"] == "open"
    assert await sweep(house) == 0
    with pytest.raises(ApprovalExpired):
        await house.approvals.approve(await house.person("bo"), ticket)
    await age(house, ticket, PUT_OFF_SECONDS)
    assert await sweep(house) == 1
    assert (await house.lab.kinds(call)).count("outcome") == 1
    assert await house.lab.state(call) == "denied"


async def test_what_a_person_ended_meanwhile_keeps_its_end(house: House) -> None:
    call, ticket = await house.asked("put", "c9")
    await age(house, ticket, 86_401)
    clockwork = Clockwork(house.lab.rooms)
    taken = await clockwork.take()
    await house.lab.gateway.cancellations.cancel(await house.lab.caller(), call)
    await clockwork.end(taken)
    assert await house.lab.state(call) == "canceled"
    assert (await house.lab.kinds(call)).count("outcome") == 1


async def test_a_ticket_somebody_decides_just_now_is_left_to_them(house: House) -> None:
    _, ticket = await house.asked("put", "c10")
    await age(house, ticket, 1800)
    other = await asyncpg.connect(house.lab.dsn)
    async with other.transaction():
        await other.execute("select from deputize.approvals where id = $1 for update", ticket)
        assert await sweep(house) == 0
    await other.close()
    assert await sweep(house) == 1


async def test_tickets_of_one_tenant_change_nothing_of_anothers(house: House) -> None:
    """The same ids in both, which no gateway would make."""
    call, ticket = await house.asked("put", "c11")
    await house.lab.db.execute("insert into deputize.tenants (tenant) values ('twin') on conflict do nothing")
    for table, column in (("calls", call), ("approvals", ticket), ("tickets", ticket), ("approval_groups", ticket)):
        names = await house.lab.db.fetchval(
            "select string_agg(quote_ident(attname), ', ') from pg_attribute where attrelid = $1::text::regclass"
            " and attnum > 0 and not attisdropped and attname <> 'tenant'", f"deputize.{table}",
        )  # fmt: skip
        await house.lab.db.execute(
            f"insert into deputize.{table} (tenant, {names}) select 'twin', {names} from deputize.{table}"
            " where tenant = 'dev' and id = $1", column,
        )  # fmt: skip
    await house.lab.db.execute(_AGE.replace("where id", "where tenant = 'dev' and id"), ticket, 86_401.0)
    assert await sweep(house) == 1
    states = await house.lab.db.fetch("select tenant, state from deputize.approvals where id = $1 order by 1", ticket)
    assert [tuple(row) for row in states] == [("dev", "expired"), ("twin", "open")]
    calls = await house.lab.db.fetch("select tenant, state from deputize.calls where id = $1 order by 1", call)
    assert [tuple(row) for row in calls] == [("dev", "denied"), ("twin", "awaiting_approval")]
    groups = await house.lab.db.fetch("select tenant from deputize.approval_groups where id = $1", ticket)
    assert [row["tenant"] for row in groups] == ["twin"]


async def test_a_tenant_whose_keys_are_broken_and_a_ticket_that_is_stop_nobody_else(house: House) -> None:
    call, ticket = await house.asked("put", "c12")
    _, broken = await house.asked("erase", "c12-broken")
    await house.lab.db.execute("update deputize.approvals set demands = 'no json' where id = $1", broken)
    await house.lab.db.execute(
        "insert into deputize.tenants (tenant) values ('locked'); insert into deputize.tenant_keys values"
        " ('locked', 1, 'no key'); insert into deputize.approvals (tenant, id, call_id, binding, demands, shown, chain,"
        " tool, group_key, levels, expires_at) values ('locked', gen_random_uuid(), $1, '', '[]', '', '{}', 't', 'g',"
        " '{}', now())".replace("$1", f"'{call}'")
    )
    await house.lab.db.execute("update deputize.approvals set next_at = now() where tenant = 'locked'")
    await age(house, ticket, 86_401)
    await age(house, broken, 3600)
    assert await sweep(house) == 3
    assert await house.lab.state(call) == "denied"
    row = await house.ticket(broken)
    assert (row["level"], row["state"]) == (1, "open")


async def test_what_waits_is_counted_by_tool_and_group(fresh_database: str, tmp_path: Path) -> None:
    async with open_house(fresh_database, tmp_path, working=False, sweep_seconds=60) as house:
        for tool, tag in (("put", "n1"), ("put", "n2"), ("erase", "n3")):
            _, ticket = await house.asked(tool, tag)
        clockwork, pending = Clockwork(house.lab.rooms), house.lab.rooms.metrics.approvals_pending
        await clockwork.count()

        def counted() -> dict[tuple[str, ...], float]:
            [family] = pending.collect()
            return {tuple(sample.labels.values()): sample.value for sample in family.samples}

        assert counted() == {("lab.put", "approvers"): 2, ("lab.erase", "keepers"): 1}
        await age(house, ticket, 86_401)
        await clockwork.sweep()
        await clockwork.count()
        assert counted() == {("lab.put", "approvers"): 2}
        [family] = house.lab.rooms.metrics.approval_time.collect()
        ended = {tuple(each.labels.values()): each.value for each in family.samples if each.name.endswith("_count")}
        assert ended == {("lab.erase", "expired"): 1}


async def _drain(lab: Lab) -> int:
    clockwork, rounds = Clockwork(lab.rooms), 0
    while await clockwork.sweep():
        rounds += 1
    return rounds


async def test_sweepers_share_the_work_and_do_each_thing_once(fresh_database: str, tmp_path: Path) -> None:
    crowd = Crowd(over=3 * AT_ONCE, rising=AT_ONCE, remind=AT_ONCE, waiting=50)
    await fill(fresh_database, crowd)
    async with open_lab(fresh_database, tmp_path) as one, open_lab(fresh_database, tmp_path) as two:
        rounds = await asyncio.gather(_drain(one), _drain(two))
        assert min(rounds) > 0
        ends = Counter(tuple(row) for row in await one.db.fetch(_ENDS))
        assert ends == {_ENDED: crowd.over}
        told_of = await one.db.fetch(
            "select kind, grp, count(*), count(distinct ticket) from deputize.notices group by 1, 2"
        )
        # By the settings of these gateways, those that rise have waited long enough to be brought to mind, too.
        assert {(row[0], row[1]): (row[2], row[3]) for row in told_of} == {
            ("escalated", "leads"): (AT_ONCE, AT_ONCE),
            ("reminder", "oncall"): (2 * AT_ONCE, 2 * AT_ONCE),
            ("reminder", "support"): (2 * AT_ONCE, 2 * AT_ONCE),
        }
        assert (
            await one.db.fetchval("select count(*) from deputize.approvals where state = 'open'")
            == crowd.due - crowd.over + 50
        )
        assert await one.db.fetchval("select count(*) from deputize.approvals where state in ('approved', 'used')") == 0


async def test_sweepers_that_are_killed_leave_nothing_half_done(fresh_database: str, tmp_path: Path) -> None:
    crowd = Crowd(over=6 * AT_ONCE, rising=2 * AT_ONCE, remind=0, waiting=0)
    await fill(fresh_database, crowd)
    async with open_lab(fresh_database, tmp_path) as lab:
        for pause in (0.05, 0.15, 0.25):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.approvals.sweeping", fresh_database, str(tmp_path)],
                stdout=subprocess.PIPE,
            )
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)
            await asyncio.sleep(pause)
            process.kill()
            await asyncio.to_thread(process.wait)
            process.stdout.close()
        await lab.db.execute(
            "update deputize.approvals set next_at = now() where state = 'open' and expires_at <= now()"
        )
        await _drain(lab)
        assert await lab.db.fetchval(_OVER) == 0
        assert Counter(tuple(row) for row in await lab.db.fetch(_ENDS)) == {_ENDED: crowd.over}
        raised = "select count(*), count(distinct ticket) from deputize.notices where kind = 'escalated'"
        assert [tuple(row) for row in await lab.db.fetch(raised)] == [(crowd.rising, crowd.rising)]


_TIMES = st.tuples(
    st.integers(0, 100_000),
    st.lists(st.integers(1, 100_000), max_size=4, unique=True).map(sorted),
    st.integers(1, 100_000),
    st.integers(0, MOST_REMINDERS),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(_TIMES, min_size=1, max_size=20))
async def test_every_look_says_when_the_next_one_is_due(house: House, rows: list[tuple[Any, ...]]) -> None:
    """By the same sums, done by hand: nothing that is open is ever without a next look, or has one behind its end."""
    db = house.lab.db
    await db.execute("delete from deputize.approvals where tenant = 'sums'")
    await db.executemany(
        _SUM,
        [(float(ago), [float(each) for each in levels], float(ends), reminded) for ago, levels, ends, reminded in rows],
    )
    await db.execute("update deputize.approvals set next_at = now() where tenant = 'sums'")
    await sweep(house)
    for row in await db.fetch("select *, clock_timestamp() as now from deputize.approvals where tenant = 'sums'"):
        waited = row["now"] - row["opened_at"]
        if row["expires_at"] <= row["now"]:
            assert row["state"] == "open"
            assert row["next_at"] <= row["now"] + timedelta(seconds=PUT_OFF_SECONDS)
            continue
        later = [timedelta(seconds=each) for each in row["levels"]]
        assert row["level"] == sum(each <= waited for each in later)
        moments = [row["expires_at"], *(row["opened_at"] + each for each in later[row["level"] : row["level"] + 1])]
        if row["reminded"] < MOST_REMINDERS:
            moments.append(row["opened_at"] + timedelta(seconds=1800 * (row["reminded"] + 1)))
        assert row["next_at"] == min(moments)
    await db.execute("delete from deputize.approvals where tenant = 'sums'")
