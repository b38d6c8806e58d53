"""Tenants are kept apart by PostgreSQL itself. Tables come from its catalogs, so that a new one is tried too."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from deputize.store.pool import READER, WRITER, Store, connect_with_role
from tests.integration.store.sample_rows import (
    CLOCK,
    add_effects,
    make_closing,
    make_entry,
    make_opening,
    make_tenants,
    open_writer,
)

# What belongs to no tenant, and why.
WITHOUT_TENANT = {
    "leases": "one row per process, which serves all tenants",
    "lineages": "the histories of the whole database",
    "schema_version": "the database's own",
    "workers": "those of them that carry runs",
    "periodic_tasks": "what one process does for all tenants",
    "log_sequencer": "the lease of the process that appends to all logs",
    "event_sinks": "the lease of the process that sends the events of all tenants to a sink",
}
PARTITIONED_BY_DAY = {"calls", "sealed_payloads", "audit_entries", "journal"}
TABLES = """
    select c.relname as name, c.relrowsecurity and c.relforcerowsecurity as forced, r.rolname as owner,
           exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant') as has_tenant,
           (select a.attname from pg_index i join pg_attribute a on a.attrelid = c.oid and a.attnum = i.indkey[0]
            where i.indrelid = c.oid and i.indisprimary) as leads
    from pg_class c join pg_roles r on r.oid = c.relowner
    where c.relnamespace = 'deputize'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    order by 1
"""
FILL = """
    insert into deputize.tenant_keys (tenant, version, wrapped) values ($1, 1, 'w');
    insert into deputize.subjects (tenant, subject, salt) values ($1, 's', 's');
    insert into deputize.tools (tenant, name, outward_name) values ($1, 'a.b', 'a__b');
    insert into deputize.tool_versions (tenant, name, version, digest, contract, state, registered_by, changed_epoch)
        values ($1, 'a.b', '1.0.0', 'd', 'c', 'available', 'r', 1);
    insert into deputize.revocations (tenant, kind, value, revoked_by, changed_epoch) values ($1, 'token', 'v', 'r', 1);
    insert into deputize.policies (tenant, changed_epoch, digest, files, facts, put_by)
        values ($1, 1, 'd', 'f', 'f', 'p');
    insert into deputize.decisions (tenant, id, record) values ($1, 'i', 'r');
    insert into deputize.grants (tenant, id, grantor, agents, scopes, not_after)
        values ($1, '01890000-0000-7000-8000-000000000000', 'g', '{a}', '{s}', now());
    insert into deputize.signing_keys (tenant, kid, sealed, public_jwk) values ($1, 'k', 's', 'p');
    insert into deputize.switches (tenant, kind, value, off_epoch, turned_by) values ($1, 'tool', 'v', 1, 't');
    insert into deputize.secrets (tenant, name, sealed, updated_by) values ($1, 'n', 's', 'u');
    insert into deputize.budgets (tenant, rule, key, period) values ($1, 'r', 'k', 1);
    insert into deputize.primary_issuers (tenant, issuer) values ($1, 'i')
"""

FILL_RUNS = """
    insert into deputize.runs (tenant, id, priority, caller, release)
        values ($1, '01890000-0000-7000-8000-000000000000', 5, 'c', 'r');
    insert into deputize.progress (tenant, id, seq, report) values ($1, '01890000-0000-7000-8000-000000000000', 1, 't');
    insert into deputize.callbacks (tenant, id, request) values ($1, '01890000-0000-7000-8000-000000000000', 'a');
    insert into deputize.deliveries (tenant, call_id, state)
        values ($1, '01890000-0000-7000-8000-000000000000', 'succeeded');
    insert into deputize.checkpoints (tenant, call_id, seq, epoch, kind, ciphertext)
        values ($1, '01890000-0000-7000-8000-000000000000', 1, 1, 'micro', 'b');
    insert into deputize.human_tasks (tenant, id, kind, call_id, question)
        values ($1, '01890000-0000-7000-8000-000000000000', 'reconcile', '01890000-0000-7000-8000-000000000000', 'q');
    insert into deputize.resource_locks (tenant, call_id, namespace, resource, scope, capacity, priority)
        values ($1, '01890000-0000-7000-8000-000000000000', $1, 'r', 's', 1, 5);
    insert into deputize.reconciliations (tenant, id, due_at)
        values ($1, '01890000-0000-7000-8000-000000000000', now())
    on conflict do nothing
"""
FILL_SERVERS = """
    insert into deputize.server_pins (tenant, server, item, digest, definition, accepted_by)
        values ($1, 's', 'instructions', 'd', 'i', 'r');
    insert into deputize.server_changes (tenant, server, item, digest, definition, kind, flags)
        values ($1, 's', 'tool:t', 'd', 't', 'added', '[]');
    insert into deputize.server_effects (tenant, server, item, digest, effects)
        values ($1, 's', 'tool:t', 'd', 'read');
    insert into deputize.server_links (tenant, server, user_name, sealed, requested_scopes)
        values ($1, 's', 'ann', 'b', '{}');
    insert into deputize.server_sign_ins (tenant, server, user_name, state_digest, sealed)
        values ($1, 's', 'ann', 'd', 'b');
    insert into deputize.server_clients (tenant, server, issuer, sealed) values ($1, 's', 'https://issuer', 'b');
    insert into deputize.server_revocations (tenant, id, server, sealed)
        values ($1, '01890000-0000-7000-8000-000000000000', 's', 'b');
    insert into deputize.erasures (tenant, id, subject, names, pseudonym)
        values ($1, '01890000-0000-7000-8000-000000000000', 's', '{s}', 'p');
    insert into deputize.legal_holds (tenant, id, kind, call_id, reason, placed_by)
        values ($1, '01890000-0000-7000-8000-000000000000', 'call', '01890000-0000-7000-8000-000000000000', 'r', 'b');
    insert into deputize.deprecated_uses (tenant, name, version, caller_user, caller_agent, day, calls, last_used_at)
        values ($1, 't', '1.0.0', 'u', '', now(), 1, now());
    insert into deputize.call_measurements
        values ($1, 't', '1.0.0', now(), 1, 0, 0, 0, 0, 0, 1, 0, 0, '{1}', '{1}');
    insert into deputize.call_costs
        values ($1, now(), 't', '1.0.0', '{p}', '', '', 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0);
    insert into deputize.recent_measurements values ($1, now(), 't', '1.0.0', 1, 0, 0, 1, '{1}', '{1}');
    insert into deputize.circuit_breakers (tenant, service) values ($1, 's');
    insert into deputize.circuit_transitions (tenant, id, service, epoch, from_state, to_state, changed_at, reason)
        values ($1, '01890000-0000-7000-8000-000000000000', 's', 1, 'closed', 'open', now(), 'r');
    insert into deputize.policy_proposals (tenant, digest, base_epoch, files, proposed_by, expires_at)
        values ($1, 'd', 0, '[]', 'r', now());
    insert into deputize.contract_tests
        (tenant, id, tool, version, digest, verdict, cases, failures, attestation, tested_at)
        values ($1, '01890000-0000-7000-8000-000000000000', 'a.b', '1.0.0', 'd', 'passed', 1, 0, 'x', now());
    insert into deputize.observed_values
        (tenant, subject, rule, entity, tool, authority_rank, call_id, sealed, seen_at, expires_at)
        values ($1, 's', 'r', 'e', 'a.b', 0, '01890000-0000-7000-8000-000000000000', 's', now(), now());
    insert into deputize.disagreements (tenant, rule, entity, id, tools, call_ids, expires_at)
        values ($1, 'r', 'e', '01890000-0000-7000-8000-000000000000', '{}', '{}', now());
    insert into deputize.results
        (tenant, reference, call_id, tool, caller_user, caller_agents, bytes, is_redacted, expires_at)
        values ($1, 'r', '01890000-0000-7000-8000-000000000000', 'a.b', 'u', '{}', 1, false, now());
    insert into deputize.result_chunks values ($1, 'r', 0, 's');
    insert into deputize.queue_turns (tenant, lane, turn) values ($1, 1, 1)
"""
FILL_LOGS = """
    insert into deputize.log_leaves (tenant, leaf_index, entry_id, hash)
        values ($1, 0, '01890000-0000-7000-8000-000000000000', sha256('l'));
    insert into deputize.log_nodes (tenant, level, node_index, hash) values ($1, 1, 0, sha256('n'));
    insert into deputize.log_checkpoints (tenant, size, root, note) values ($1, 1, sha256('r'), 'n');
    insert into deputize.log_witnessed_checkpoints (tenant, size, note, cosignatures) values ($1, 1, 'n', 1);
    insert into deputize.log_expiries (tenant, end_index, entry_id)
        values ($1, 1, '01890000-0000-7000-8000-000000000000');
    insert into deputize.log_keys (tenant, key_id, verifier_key, sealed) values ($1, 'k', 'v', 's');
    insert into deputize.log_backlogs (tenant) values ($1);
    insert into deputize.event_sinks (name) values ($1 || '-bus');
    insert into deputize.event_positions (tenant, sink, next_index) values ($1, $1 || '-bus', 1)
"""
FILL_APPROVALS = """
    insert into deputize.approvals (tenant, id, call_id, binding, demands, presentation, chain, tool, group_key, levels,
            expires_at)
        values ($1, '01890000-0000-7000-8000-000000000000', '01890000-0000-7000-8000-000000000000', 'b', 'd', 's', '{}',
                't', 'g', '{}', now());
    insert into deputize.approval_groups (tenant, grp, id) values ($1, 'g', '01890000-0000-7000-8000-000000000000');
    insert into deputize.votes (tenant, id, voter, approve, counts)
        values ($1, '01890000-0000-7000-8000-000000000000', 'v', true, '{}');
    insert into deputize.notices (tenant, approval_id, grp, kind)
        values ($1, '01890000-0000-7000-8000-000000000000', 'g', 'asked');
    insert into deputize.notification_windows (tenant, grp) values ($1, 'g');
    insert into deputize.notifications (tenant, grp, receiver, kind) values ($1, 'g', 'r', 'digest')
"""


@pytest.fixture(scope="module")
async def dsn(module_database: str) -> str:
    """Two tenants with a row in every table."""
    await make_tenants(module_database, "acme", "other")
    connection = await asyncpg.connect(module_database)
    for tenant in ("acme", "other"):
        for filling in (FILL, FILL_RUNS, FILL_APPROVALS, FILL_SERVERS, FILL_LOGS):
            for statement in filling.split(";"):
                await connection.execute(statement, tenant)
    await connection.close()
    async with open_writer(module_database) as writer:
        for tenant in ("acme", "other"):
            row = make_opening("k", tenant=tenant)
            await writer.put(row)
            await writer.put(add_effects(make_closing(row.call_id, tenant=tenant), "7"))
            await writer.put(make_entry(tenant=tenant))
    return module_database


@pytest.fixture(scope="module")
async def owner(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture(scope="module")
async def store(dsn: str) -> AsyncIterator[Store]:
    opened = await Store.open(dsn, read_connections=2)
    yield opened
    await opened.close()


async def _list_tables(owner: asyncpg.Connection, *, of_tenants: bool = True) -> list[asyncpg.Record]:
    return [table for table in await owner.fetch(TABLES) if not of_tenants or table["has_tenant"]]


async def test_every_table_knows_its_tenant_first_or_is_listed_as_an_exception(owner: asyncpg.Connection) -> None:
    tables = await _list_tables(owner, of_tenants=False)
    assert {table["name"] for table in tables if not table["has_tenant"]} == set(WITHOUT_TENANT)
    assert {
        table["name"]: table["leads"] for table in tables if table["has_tenant"] and table["leads"] != "tenant"
    } == {}
    assert len(tables) > 10


async def test_every_tenants_table_forces_row_level_security(owner: asyncpg.Connection) -> None:
    assert [table["name"] for table in await _list_tables(owner) if not table["forced"]] == []


async def test_everything_belongs_to_the_owners_role(owner: asyncpg.Connection) -> None:
    tables = await _list_tables(owner, of_tenants=False)
    assert {table["name"] for table in tables if table["owner"] != "deputize_owner"} == set()
    strangers = await owner.fetch(
        "select p.proname from pg_proc p join pg_roles r on r.oid = p.proowner "
        "where p.pronamespace = 'deputize'::regnamespace and r.rolname <> 'deputize_owner'"
    )
    assert strangers == []


async def test_a_reader_sees_its_own_tenants_rows_and_no_others(owner: asyncpg.Connection, store: Store) -> None:
    for table in await _list_tables(owner):
        name = table["name"]
        assert await owner.fetchval(f"select count(distinct tenant) from deputize.{name}") == 2, (
            f"{name} has no rows to hide"
        )
        for tenant in ("acme", "other"):
            async with store.read_transaction(tenant) as connection:
                seen = {row["tenant"] for row in await connection.fetch(f"select tenant from deputize.{name}")}
            assert seen == {tenant}, name


async def test_a_reader_that_names_no_tenant_sees_nothing(owner: asyncpg.Connection, store: Store, dsn: str) -> None:
    fresh = await connect_with_role(dsn, READER)
    async with store.read_transaction("acme"):
        pass
    async with store.readers.acquire() as used:
        for table in await _list_tables(owner):
            for connection in (fresh, used):
                assert await connection.fetch(f"select * from deputize.{table['name']}") == []
        async with store.read_transaction("no-such-tenant") as connection:
            assert await connection.fetch("select * from deputize.calls") == []
    await fresh.close()


async def test_a_reader_cannot_write_anywhere(owner: asyncpg.Connection, dsn: str) -> None:
    reader = await connect_with_role(dsn, READER)
    for table in await _list_tables(owner, of_tenants=False):
        for statement in ("delete from deputize.{}", "truncate deputize.{}", "insert into deputize.{} default values"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await reader.execute(statement.format(table["name"]))
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await reader.execute("call deputize.create_partitions(1)")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await reader.execute("create table deputize.mine (a int)")
    await reader.close()


async def test_reading_is_read_only_even_where_the_login_may_write(store: Store) -> None:
    async with store.read_transaction("acme") as connection:
        with pytest.raises(asyncpg.PostgresError, match=r"read-only|permission denied"):
            await connection.execute("create temporary table t (a int)")


@pytest.mark.requirement("GOV-5")
@pytest.mark.parametrize(
    "statement",
    [
        "update deputize.audit_entries set entry = ''",
        "delete from deputize.audit_entries",
        "truncate deputize.audit_entries",
    ],
)
async def test_not_even_the_writer_can_change_or_remove_an_entry(dsn: str, statement: str) -> None:
    writer = await connect_with_role(dsn, WRITER)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await writer.execute(statement)
    await writer.close()


@pytest.mark.requirement("GOV-5")
async def test_partitions_cannot_be_reached_around_their_parents(owner: asyncpg.Connection, dsn: str) -> None:
    parts = await owner.fetch(
        "select relname from pg_class "
        "where relnamespace = 'deputize'::regnamespace and relispartition and relkind = 'r'"
    )
    assert len(parts) > 30
    for role in (READER, WRITER):
        connection = await connect_with_role(dsn, role)
        for part in parts:
            for statement in ("select 1 from deputize.{}", "delete from deputize.{}"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(statement.format(part["relname"]))
        await connection.close()


async def test_the_writer_holds_no_right_that_it_does_not_use(owner: asyncpg.Connection) -> None:
    granted = {
        (row["table_name"], row["privilege_type"])
        for row in await owner.fetch(
            "select table_name, privilege_type from information_schema.role_table_grants "
            "where table_schema = 'deputize' and grantee = 'deputize_writer' "
            "and privilege_type not in ('SELECT', 'INSERT')"
        )
    }
    assert {table for table, right in granted if right == "DELETE"} == {
        "claims", "subjects", "leases", "secrets", "budgets", "workers", "progress", "callbacks", "deliveries",
        "checkpoints", "reconciliations", "resource_locks", "approval_groups", "notices", "notification_windows",
        "notifications",
        "server_pins", "server_effects", "server_links", "server_sign_ins", "server_clients", "server_revocations",
        "policy_proposals", "contract_tests", "recent_measurements", "call_costs", "circuit_breakers",
        "circuit_transitions",
        "deprecated_uses", "observed_values", "disagreements", "results", "result_chunks",
        "call_measurements", "log_queue", "log_backlogs",
        "legal_holds", "queue_turns",
    }  # fmt: skip
    assert {right for _, right in granted} == {"UPDATE", "DELETE"}
    # The keys of tenants are wrapped again when the master key is replaced.
    assert not {
        "audit_entries",
        "tenants",
        "subjects",
        "tools",
        "log_leaves",
        "log_nodes",
        "log_checkpoints",
        "log_witnessed_checkpoints",
    } & {table for table, right in granted if right == "UPDATE"}


async def test_nobody_else_may_call_the_schemas_functions_or_look_into_it(owner: asyncpg.Connection) -> None:
    assert not await owner.fetchval("select has_schema_privilege('pg_monitor', 'deputize', 'usage')")


async def _days_with_partitions(owner: asyncpg.Connection, parent: str) -> set[str]:
    rows = await owner.fetch(
        "select inhrelid::regclass::text as name from pg_inherits where inhparent = $1::regclass", f"deputize.{parent}"
    )
    return {row["name"].rsplit("_", 1)[1] for row in rows}


async def test_a_migration_makes_partitions_for_yesterday_today_and_a_week_ahead(owner: asyncpg.Connection) -> None:
    """The database was migrated when the tests began, which may have been before midnight."""
    today = datetime.now(UTC).date()
    for parent in PARTITIONED_BY_DAY:
        days = await _days_with_partitions(owner, parent)
        assert any(
            {(migrated + timedelta(days=n)).strftime("%Y%m%d") for n in range(-1, 8)} <= days
            for migrated in (today, today - timedelta(days=1))
        )


@pytest.mark.parametrize("mode", ["access share", "row exclusive"])
async def test_partitions_are_made_without_waiting_for_readers_and_writers(
    owner: asyncpg.Connection, dsn: str, mode: str
) -> None:
    """A long backup or a slow batch must not hold up the sweeper, and everybody else behind it."""
    busy = await asyncpg.connect(dsn)
    ahead = {"access share": 11, "row exclusive": 12}[mode]
    last = (datetime.now(UTC) + timedelta(days=ahead)).strftime("%Y%m%d")
    async with busy.transaction():
        for parent in PARTITIONED_BY_DAY:
            await busy.execute(f"lock table deputize.{parent} in {mode} mode")
        writer = await connect_with_role(dsn, WRITER)
        await writer.execute("set lock_timeout = '30s'")
        await writer.execute(f"call deputize.create_partitions({ahead})")
        await writer.close()
    await busy.close()
    for parent in PARTITIONED_BY_DAY:
        assert last in await _days_with_partitions(owner, parent)
    rights = await owner.fetchval("select count(*) from pg_class where relispartition and relacl is not null "
                                  "and relnamespace = 'deputize'::regnamespace and relkind = 'r'")  # fmt: skip
    assert rights == 0


async def test_rows_of_a_partition_made_later_are_found_by_id_and_by_call(owner: asyncpg.Connection, dsn: str) -> None:
    await owner.execute("call deputize.create_partitions(14)")
    day = int((datetime.now(UTC) + timedelta(days=13)).timestamp() * 1000)
    ahead = CLOCK.__class__(epoch_ms=lambda: day)
    row = make_opening(call_id=ahead.new_id(), entry_id=ahead.new_id())
    async with open_writer(dsn) as writer:
        await writer.put(row)
        await writer.put(row)
        assert (await writer.put(make_closing(row.call_id, entry_id=ahead.new_id()))).is_closed
    plan = "\n".join(
        each[0]
        for each in await owner.fetch(
            "explain select 1 from deputize.audit_entries where tenant = 'acme' and id = $1", row.entry_id
        )
    )
    assert plan.count("Scan") == 1


async def test_make_partitions_may_run_many_times_at_once(dsn: str) -> None:
    connections = [await connect_with_role(dsn, WRITER) for _ in range(4)]
    await asyncio.gather(*(connection.execute("call deputize.create_partitions(16)") for connection in connections))
    for connection in connections:
        await connection.close()


async def test_a_gateways_database_settings_cannot_undo_the_barrier_or_durability(
    dsn: str, owner: asyncpg.Connection
) -> None:
    name = dsn.rsplit("/", 1)[1]
    await owner.execute(f"alter database {name} set default_transaction_isolation = 'repeatable read'")
    await owner.execute(f"alter database {name} set synchronous_commit = off")
    try:
        writer = await connect_with_role(dsn, WRITER)
        assert await writer.fetchval("show default_transaction_isolation") == "read committed"
        assert await writer.fetchval("show synchronous_commit") == "on"
        await writer.close()
    finally:
        await owner.execute(f"alter database {name} reset all")
