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
from deputize.core.errors import ApprovalExpired, HumanTaskNotFound, NotAnApprover
from deputize.operations.approvals.escalation import BATCH_SIZE, EXPIRY_RETRY_SECONDS, MAX_REMINDERS, ApprovalEscalator
from proofs.approval_backlog.backlog import Backlog, fill_backlog
from tests.support.approval_lab import RULES, ApprovalLab, open_approval_lab
from tests.support.gateway_lab import NEVER, GatewayLab, error_slug, open_lab, parse_body
from tests.support.scripted_tools import list_effects

pytestmark = pytest.mark.requirement("GOV-3")

_AGE = """
    update deputize.approvals set opened_at = opened_at - make_interval(secs => $2),
        expires_at = expires_at - make_interval(secs => $2), next_at = next_at - make_interval(secs => $2) where id = $1
"""
_NOTICES = "select grp, kind from deputize.notices where approval_id = $1 order by created_at, grp"
_OVER = "select count(*) from deputize.approvals where expires_at <= now() and state = 'open'"
_ENDS = """
    select a.state, k.state as call_state, k.error, s.ciphertext is not null as told, count(e.id) as entries
    from deputize.approvals a join deputize.calls k on k.tenant = a.tenant and k.id = a.call_id
    left join deputize.sealed_payloads s on s.tenant = k.tenant and s.id = k.id and s.kind = 'outcome'
    left join deputize.audit_entries e on e.tenant = k.tenant and e.call_id = k.id
    where a.expires_at <= now() group by a.tenant, a.id, a.state, k.state, k.error, s.ciphertext
"""
_SUM = """
    insert into deputize.approvals (tenant, id, call_id, binding, demands, presentation, chain, tool, group_key, levels,
        opened_at, expires_at, reminders_sent)
    select 'sums', gen_random_uuid(), gen_random_uuid(), '', '[]', '', '{}', 't', 'g', $2, opened_at,
        opened_at + make_interval(secs => $3), $4
    from (select now() - make_interval(secs => $1) as opened_at) as opened
"""
_ENDED_REQUEST = ("expired", "denied", "approval-expired", True, 1)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def approval_lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApprovalLab]:
    async with open_approval_lab(
        module_database, tmp_path_factory.mktemp("house"), with_worker=False, sweep_seconds=NEVER
    ) as opened:
        yield opened


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def _clear_due_requests(approval_lab: ApprovalLab) -> None:
    """What earlier tests left does not come up in this one."""
    await approval_lab.lab.db.execute("update deputize.approvals set next_at = null; delete from deputize.notices")


async def age_request(approval_lab: ApprovalLab, ticket: str, seconds: float) -> None:
    """As if so much time had passed."""
    await approval_lab.lab.db.execute(_AGE, ticket, float(seconds))


async def run_escalation(approval_lab: ApprovalLab) -> int:
    return await ApprovalEscalator(approval_lab.lab.runtime).sweep()


async def list_notices(approval_lab: ApprovalLab, ticket: str) -> list[tuple[str, str]]:
    return [(row["grp"], row["kind"]) for row in await approval_lab.lab.db.fetch(_NOTICES, ticket)]


async def time_until_due(approval_lab: ApprovalLab, ticket: str) -> timedelta:
    row = await approval_lab.fetch_request(ticket)
    waits: timedelta = row["next_at"] - row["opened_at"]
    return waits


async def test_requests_are_not_swept_before_they_are_due(approval_lab: ApprovalLab) -> None:
    _, ticket = await approval_lab.request_approval("put", "c1")
    assert await run_escalation(approval_lab) == 0
    await age_request(approval_lab, ticket, 60)
    assert await run_escalation(approval_lab) == 1
    assert await time_until_due(approval_lab, ticket) == timedelta(seconds=1800)
    assert await list_notices(approval_lab, ticket) == [("approvers", "asked")]
    assert await run_escalation(approval_lab) == 0


async def test_people_are_reminded_so_often_and_no_more(approval_lab: ApprovalLab) -> None:
    _, ticket = await approval_lab.request_approval("put", "c2")
    for round_ in range(1, 30):
        await age_request(approval_lab, ticket, 1800)
        await run_escalation(approval_lab)
        assert len(await list_notices(approval_lab, ticket)) == 1 + min(round_, MAX_REMINDERS)
    assert set(await list_notices(approval_lab, ticket)) == {("approvers", "asked"), ("approvers", "reminder")}
    row = await approval_lab.fetch_request(ticket)
    assert (row["state"], row["next_at"]) == ("open", row["expires_at"])


async def test_a_request_nobody_opened_is_reminded_once(approval_lab: ApprovalLab) -> None:
    _, ticket = await approval_lab.request_approval("put", "c3")
    await age_request(approval_lab, ticket, 5 * 1800 + 20)
    await run_escalation(approval_lab)
    assert await list_notices(approval_lab, ticket) == [("approvers", "asked"), ("approvers", "reminder")]
    assert await time_until_due(approval_lab, ticket) == timedelta(seconds=6 * 1800)


async def test_when_nobody_decides_more_people_are_asked_beside_the_first(approval_lab: ApprovalLab) -> None:
    call, ticket = await approval_lab.request_approval("erase", "c4")
    elder = await approval_lab.make_approver("elda", groups=("elders",))
    with pytest.raises((NotAnApprover, HumanTaskNotFound)):
        await approval_lab.approve(elder, ticket)
    await age_request(approval_lab, ticket, 3600)
    assert await run_escalation(approval_lab) == 1
    assert (await approval_lab.fetch_request(ticket))["level"] == 1
    assert sorted(await list_notices(approval_lab, ticket)) == [
        ("elders", "escalated"), ("keepers", "asked"), ("keepers", "reminder"),
    ]  # fmt: skip
    entry = (await approval_lab.lab.fetch_entries(call))[-1]
    assert (entry["kind"], entry["command"], entry["approval"], entry["subject"], entry["caller"]) == (
        "command", "escalate_approval", ticket, "elders", [],
    )  # fmt: skip
    assert (await approval_lab.approve(elder, ticket))["state"] == "open"
    keeper = await approval_lab.make_approver("kim", groups=("keepers",))
    assert (await approval_lab.approve(keeper, ticket))["state"] == "approved"
    assert (await approval_lab.fetch_request(ticket))["next_at"] is None


async def test_a_late_sweep_escalates_to_every_level_that_is_due(approval_lab: ApprovalLab) -> None:
    _, ticket = await approval_lab.request_approval("erase", "c5")
    await age_request(approval_lab, ticket, 86_000)
    await run_escalation(approval_lab)
    assert ("elders", "escalated") in await list_notices(approval_lab, ticket)
    assert (await approval_lab.fetch_request(ticket))["state"] == "open"


async def test_what_nobody_decides_is_denied_and_says_so(approval_lab: ApprovalLab) -> None:
    call, ticket = await approval_lab.request_approval("put", "c6")
    await age_request(approval_lab, ticket, 86_401)
    # Before anybody sweeps, it is too late already.
    with pytest.raises(ApprovalExpired):
        await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)
    assert await run_escalation(approval_lab) == 1
    row = await approval_lab.fetch_request(ticket)
    assert (row["state"], row["next_at"]) == ("expired", None)
    listed = await approval_lab.lab.db.fetch("select state, resolution from deputize.human_tasks where id = $1", ticket)
    assert [tuple(each) for each in listed] == [("expired", "expired")]
    assert await approval_lab.lab.fetch_state(call) == "denied"
    again = await approval_lab.lab.call("put", "c6", key="put-c6")
    assert (error_slug(again), again.is_replay, parse_body(again)["error"]["details"]["approval_id"]) == (
        "approval-expired", True, ticket,
    )  # fmt: skip
    entry = (await approval_lab.lab.fetch_entries(call))[-1]
    assert (entry["kind"], entry["outcome"], entry["error"], entry["rules"], entry["subject"]) == (
        "outcome", "denied", "E3226", ["nobody-decided"], ticket,
    )  # fmt: skip
    assert (
        await approval_lab.lab.db.fetchval("select count(*) from deputize.approval_groups where id = $1", ticket) == 0
    )
    with pytest.raises(ApprovalExpired):
        await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)
    assert list_effects("c6") == []
    assert await run_escalation(approval_lab) == 0


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_gateway_whose_clock_is_off_ends_nothing_early_and_nothing_late(
    approval_lab: ApprovalLab, hours: int
) -> None:
    def shift_clock() -> int:
        return Clock().epoch_ms() + hours * 3_600_000

    _, early = await approval_lab.request_approval("put", f"c7-{hours}-early")
    _, late = await approval_lab.request_approval("put", f"c7-{hours}-late")
    await age_request(approval_lab, early, 86_400 - 600)
    await age_request(approval_lab, late, 86_400)
    async with open_lab(
        approval_lab.lab.dsn, approval_lab.lab.folder, clock=replace(Clock(), epoch_ms=shift_clock)
    ) as off:
        assert await ApprovalEscalator(off.runtime).sweep() == 2
    # That gateway brought the rules of its own settings.
    await approval_lab.put_policies(RULES)
    assert (await approval_lab.fetch_request(early))["state"] == "open"
    assert (await approval_lab.fetch_request(late))["state"] == "expired"


async def test_who_dies_after_taking_leaves_it_to_the_next_and_nobody_decides_meanwhile(
    approval_lab: ApprovalLab,
) -> None:
    call, ticket = await approval_lab.request_approval("put", "c8")
    await age_request(approval_lab, ticket, 86_401)
    assert len(await ApprovalEscalator(approval_lab.lab.runtime).advance_due()) == 1
    assert (await approval_lab.fetch_request(ticket))["state"] == "open"
    assert await run_escalation(approval_lab) == 0
    with pytest.raises(ApprovalExpired):
        await approval_lab.approve(await approval_lab.make_approver("bo"), ticket)
    await age_request(approval_lab, ticket, EXPIRY_RETRY_SECONDS)
    assert await run_escalation(approval_lab) == 1
    assert (await approval_lab.lab.fetch_entry_kinds(call)).count("outcome") == 1
    assert await approval_lab.lab.fetch_state(call) == "denied"


async def test_what_a_person_ended_meanwhile_keeps_its_end(approval_lab: ApprovalLab) -> None:
    call, ticket = await approval_lab.request_approval("put", "c9")
    await age_request(approval_lab, ticket, 86_401)
    clockwork = ApprovalEscalator(approval_lab.lab.runtime)
    taken = await clockwork.advance_due()
    await approval_lab.lab.gateway.cancellations.cancel_call(await approval_lab.lab.make_caller(), call)
    await clockwork.expire_requests(taken)
    assert await approval_lab.lab.fetch_state(call) == "canceled"
    assert (await approval_lab.lab.fetch_entry_kinds(call)).count("outcome") == 1


async def test_a_request_being_decided_is_skipped_by_the_sweep(approval_lab: ApprovalLab) -> None:
    _, ticket = await approval_lab.request_approval("put", "c10")
    await age_request(approval_lab, ticket, 1800)
    other = await asyncpg.connect(approval_lab.lab.dsn)
    async with other.transaction():
        await other.execute("select from deputize.approvals where id = $1 for update", ticket)
        assert await run_escalation(approval_lab) == 0
    await other.close()
    assert await run_escalation(approval_lab) == 1


async def test_approval_requests_of_one_tenant_do_not_affect_another(approval_lab: ApprovalLab) -> None:
    """The same ids in both, which no gateway would make."""
    call, ticket = await approval_lab.request_approval("put", "c11")
    await approval_lab.lab.db.execute("insert into deputize.tenants (tenant) values ('twin') on conflict do nothing")
    for table, column in (("calls", call), ("approvals", ticket), ("human_tasks", ticket), ("approval_groups", ticket)):
        names = await approval_lab.lab.db.fetchval(
            "select string_agg(quote_ident(attname), ', ') from pg_attribute where attrelid = $1::text::regclass"
            " and attnum > 0 and not attisdropped and attname <> 'tenant'", f"deputize.{table}",
        )  # fmt: skip
        await approval_lab.lab.db.execute(
            f"insert into deputize.{table} (tenant, {names}) select 'twin', {names} from deputize.{table}"
            " where tenant = 'dev' and id = $1", column,
        )  # fmt: skip
    await approval_lab.lab.db.execute(_AGE.replace("where id", "where tenant = 'dev' and id"), ticket, 86_401.0)
    assert await run_escalation(approval_lab) == 1
    states = await approval_lab.lab.db.fetch(
        "select tenant, state from deputize.approvals where id = $1 order by 1", ticket
    )
    assert [tuple(row) for row in states] == [("dev", "expired"), ("twin", "open")]
    calls = await approval_lab.lab.db.fetch("select tenant, state from deputize.calls where id = $1 order by 1", call)
    assert [tuple(row) for row in calls] == [("dev", "denied"), ("twin", "awaiting_approval")]
    groups = await approval_lab.lab.db.fetch("select tenant from deputize.approval_groups where id = $1", ticket)
    assert [row["tenant"] for row in groups] == ["twin"]


async def test_broken_tenant_keys_and_a_broken_request_do_not_stop_other_requests(approval_lab: ApprovalLab) -> None:
    call, ticket = await approval_lab.request_approval("put", "c12")
    _, broken = await approval_lab.request_approval("erase", "c12-broken")
    await approval_lab.lab.db.execute("update deputize.approvals set demands = 'no json' where id = $1", broken)
    await approval_lab.lab.db.execute(
        "insert into deputize.tenants (tenant) values ('locked'); insert into deputize.tenant_keys values"
        " ('locked', 1, 'no key'); insert into deputize.approvals (tenant, id, call_id, binding, demands, presentation,"
        " chain, tool, group_key, levels, expires_at) values ('locked', gen_random_uuid(), $1, '', '[]', '', '{}', 't',"
        " 'g', '{}', now())".replace("$1", f"'{call}'")
    )
    await approval_lab.lab.db.execute("update deputize.approvals set next_at = now() where tenant = 'locked'")
    await age_request(approval_lab, ticket, 86_401)
    await age_request(approval_lab, broken, 3600)
    assert await run_escalation(approval_lab) == 3
    assert await approval_lab.lab.fetch_state(call) == "denied"
    row = await approval_lab.fetch_request(broken)
    assert (row["level"], row["state"]) == (1, "open")


async def test_what_waits_is_counted_by_tool_and_group(fresh_database: str, tmp_path: Path) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False, sweep_seconds=NEVER) as approval_lab:
        for tool, tag in (("put", "n1"), ("put", "n2"), ("erase", "n3")):
            _, ticket = await approval_lab.request_approval(tool, tag)
        clockwork, pending = (
            ApprovalEscalator(approval_lab.lab.runtime),
            approval_lab.lab.runtime.metrics.approvals_pending,
        )
        await clockwork.count_pending()

        def read_gauge() -> dict[tuple[str, ...], float]:
            [family] = pending.collect()
            return {tuple(sample.labels.values()): sample.value for sample in family.samples}

        assert read_gauge() == {("lab.put", "approvers"): 2, ("lab.erase", "keepers"): 1}
        await age_request(approval_lab, ticket, 86_401)
        await clockwork.sweep()
        await clockwork.count_pending()
        assert read_gauge() == {("lab.put", "approvers"): 2}
        [family] = approval_lab.lab.runtime.metrics.approval_time.collect()
        ended = {tuple(each.labels.values()): each.value for each in family.samples if each.name.endswith("_count")}
        assert ended == {("lab.erase", "expired"): 1}


async def _sweep_all(lab: GatewayLab) -> int:
    clockwork, rounds = ApprovalEscalator(lab.runtime), 0
    while await clockwork.sweep():
        rounds += 1
    return rounds


async def test_sweepers_share_the_work_and_do_each_thing_once(fresh_database: str, tmp_path: Path) -> None:
    crowd = Backlog(over=3 * BATCH_SIZE, escalate=BATCH_SIZE, remind=BATCH_SIZE, idle=50)
    await fill_backlog(fresh_database, crowd)
    async with open_lab(fresh_database, tmp_path) as one, open_lab(fresh_database, tmp_path) as two:
        rounds = await asyncio.gather(_sweep_all(one), _sweep_all(two))
        assert min(rounds) > 0
        ends = Counter(tuple(row) for row in await one.db.fetch(_ENDS))
        assert ends == {_ENDED_REQUEST: crowd.over}
        told_of = await one.db.fetch(
            "select kind, grp, count(*), count(distinct approval_id) from deputize.notices group by 1, 2"
        )
        # By the settings of these gateways, those that rise have waited long enough to be brought to mind, too.
        assert {(row[0], row[1]): (row[2], row[3]) for row in told_of} == {
            ("escalated", "leads"): (BATCH_SIZE, BATCH_SIZE),
            ("reminder", "oncall"): (2 * BATCH_SIZE, 2 * BATCH_SIZE),
            ("reminder", "support"): (2 * BATCH_SIZE, 2 * BATCH_SIZE),
        }
        assert (
            await one.db.fetchval("select count(*) from deputize.approvals where state = 'open'")
            == crowd.due - crowd.over + 50
        )
        assert await one.db.fetchval("select count(*) from deputize.approvals where state in ('approved', 'used')") == 0


@pytest.mark.nightly
async def test_sweepers_that_are_killed_leave_nothing_half_done(fresh_database: str, tmp_path: Path) -> None:
    crowd = Backlog(over=6 * BATCH_SIZE, escalate=2 * BATCH_SIZE, remind=0, idle=0)
    await fill_backlog(fresh_database, crowd)
    async with open_lab(fresh_database, tmp_path) as lab:
        for pause in (0.05, 0.15, 0.25):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.escalation_process", fresh_database, str(tmp_path)],
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
        await _sweep_all(lab)
        assert await lab.db.fetchval(_OVER) == 0
        assert Counter(tuple(row) for row in await lab.db.fetch(_ENDS)) == {_ENDED_REQUEST: crowd.over}
        raised = "select count(*), count(distinct approval_id) from deputize.notices where kind = 'escalated'"
        assert [tuple(row) for row in await lab.db.fetch(raised)] == [(crowd.escalate, crowd.escalate)]


_TIMES = st.tuples(
    st.integers(0, 100_000),
    st.lists(st.integers(1, 100_000), max_size=4, unique=True).map(sorted),
    st.integers(1, 100_000),
    st.integers(0, MAX_REMINDERS),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(_TIMES, min_size=1, max_size=20))
async def test_every_sweep_returns_when_the_next_one_is_due(
    approval_lab: ApprovalLab, rows: list[tuple[Any, ...]]
) -> None:
    """By the same sums, done by hand: nothing that is open is ever without a next look, or has one behind its end."""
    db = approval_lab.lab.db
    await db.execute("delete from deputize.approvals where tenant = 'sums'")
    await db.executemany(
        _SUM,
        [(float(ago), [float(each) for each in levels], float(ends), reminded) for ago, levels, ends, reminded in rows],
    )
    await db.execute("update deputize.approvals set next_at = now() where tenant = 'sums'")
    await run_escalation(approval_lab)
    for row in await db.fetch("select *, clock_timestamp() as now from deputize.approvals where tenant = 'sums'"):
        waited = row["now"] - row["opened_at"]
        if row["expires_at"] <= row["now"]:
            assert row["state"] == "open"
            assert row["next_at"] <= row["now"] + timedelta(seconds=EXPIRY_RETRY_SECONDS)
            continue
        later = [timedelta(seconds=each) for each in row["levels"]]
        assert row["level"] == sum(each <= waited for each in later)
        moments = [row["expires_at"], *(row["opened_at"] + each for each in later[row["level"] : row["level"] + 1])]
        if row["reminders_sent"] < MAX_REMINDERS:
            moments.append(row["opened_at"] + timedelta(seconds=1800 * (row["reminders_sent"] + 1)))
        assert row["next_at"] == min(moments)
    await db.execute("delete from deputize.approvals where tenant = 'sums'")
