"""The logins of a production database: what each may do, and that no gateway's can rewrite the audit."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from deputize.core.config_error import ConfigError
from deputize.core.settings import DatabaseSettings, Settings
from deputize.interfaces.cli.local import database
from deputize.store import migrate, queries
from deputize.store.database_checks import inspect_database
from deputize.store.local_postgres import LocalPostgres
from deputize.store.logins import list_allowed_audit_changes, list_login_powers
from deputize.store.schema_revision import current_revision, newest_revision
from tests.support.database_logins import DatabaseLogins, create_logins, make_production_database

pytestmark = pytest.mark.requirement("GOV-5")


@pytest.fixture(scope="module")
def logins(postgres: LocalPostgres) -> Iterator[DatabaseLogins]:
    with make_production_database(postgres) as made:
        migrate.upgrade(made.migrator)
        yield made


async def read_powers(dsn: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    connection: asyncpg.Connection = await asyncpg.connect(dsn)
    try:
        return await list_login_powers(connection), await list_allowed_audit_changes(connection)
    finally:
        await connection.close()


async def test_the_login_of_migrations_needs_no_power_over_the_server(logins: DatabaseLogins) -> None:
    connection: asyncpg.Connection = await asyncpg.connect(logins.gateway)
    assert await current_revision(connection) == newest_revision()
    await connection.close()
    await migrate.upgrade_async(logins.migrator)


async def test_the_login_of_gateways_cannot_change_the_audit(logins: DatabaseLogins) -> None:
    assert await read_powers(logins.gateway) == ((), ())
    assert await read_powers(logins.auditor) == ((), ())
    facts = await inspect_database(logins.gateway)
    assert (facts.login, facts.login_powers, facts.allowed_audit_changes) == ("deputize_gateway", (), ())
    assert all(role.is_there and role.may_become for role in facts.roles)


async def test_a_gateway_may_execute_each_statement_that_it_has(logins: DatabaseLogins) -> None:
    """Planned and not executed: PostgreSQL checks rights all the same, those that a row lock needs too."""
    refused = []
    connection: asyncpg.Connection = await asyncpg.connect(logins.gateway)
    for topic in sorted(each.stem for each in Path(queries.__file__).parent.glob("*.sql")):
        for name, statement in queries.load_statements(topic).items():
            for role in ("writer", "reader", "engine"):
                await connection.execute(f"set role deputize_{role}")
                try:
                    await connection.execute(f"explain (generic_plan) {statement}")
                    break
                except asyncpg.InsufficientPrivilegeError as error:
                    denial = str(error)
                except asyncpg.PostgresSyntaxError:
                    # No query: it listens, locks or sets something.
                    break
            else:
                refused.append(f"{topic}.{name}: {denial}")
    await connection.close()
    assert refused == []


@pytest.mark.parametrize(
    "statement",
    [
        "update deputize.audit_entries set tenant = 'x'",
        "delete from deputize.audit_entries",
        "truncate deputize.audit_entries",
        "drop table deputize.audit_entries",
        "alter table deputize.audit_entries disable row level security",
        "set role deputize_owner",
        "grant deputize_owner to deputize_gateway",
        "alter role deputize_gateway superuser",
        "create function deputize.mine() returns void language sql security definer as ''",
        "drop schema deputize cascade",
        "alter function deputize.create_partitions owner to deputize_gateway",
    ],
)
async def test_a_gateways_login_is_refused_what_its_owner_may(logins: DatabaseLogins, statement: str) -> None:
    for role in ("none", "deputize_writer", "deputize_reader", "deputize_engine"):
        connection: asyncpg.Connection = await asyncpg.connect(logins.gateway)
        try:
            await connection.execute(f"set role {role}")
            with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError)):
                await connection.execute(statement)
        finally:
            await connection.close()


async def test_a_gateways_login_unlinks_nobody_from_the_audit_without_an_entry(logins: DatabaseLogins) -> None:
    gateway: asyncpg.Connection = await asyncpg.connect(logins.gateway)
    await gateway.execute("set role deputize_writer")
    await gateway.execute("call deputize.create_partitions(1000000)")
    await gateway.execute(
        "insert into deputize.tenants (tenant) values ('acme');"
        "insert into deputize.subjects (tenant, subject, salt) values ('acme', 'ann', '1'), ('acme', 'bob', '2')"
    )
    find_pseudonym = "select deputize.hash_subject(salt, subject) from deputize.subjects where subject = $1"
    ann, bob = [await gateway.fetchval(find_pseudonym, name) for name in ("ann", "bob")]

    async def erase(subject: str, pseudonym: str, entry: str | None) -> None:
        async with gateway.transaction():
            erasure_id = await gateway.fetchval(
                "insert into deputize.erasures (tenant, id, subject, names, pseudonym, requested_at) values "
                "('acme', gen_random_uuid(), $1, array[$1], $2, now() + interval '1 year') returning id",
                subject, pseudonym,
            )  # fmt: skip
            await gateway.execute("delete from deputize.subjects where subject = $1", subject)
            if entry is not None:
                await gateway.execute(
                    "insert into deputize.audit_entries (tenant, id, entry) "
                    "values ('acme', deputize.first_uuid_of_day(current_date), convert_to($1, 'UTF8'))",
                    entry.replace("PSEUDONYM", pseudonym),
                )
            await gateway.fetchval("select deputize.continue_erasure('acme', $1, 100, 0)", erasure_id)

    entry = '{"command":"erase_user","outcome":"OUTCOME","subject":"PSEUDONYM"}'
    for subject, pseudonym, its_entry in (
        ("ann", ann, None),
        ("ann", ann, entry.replace("OUTCOME", "denied")),
        ("ann", bob, entry.replace("OUTCOME", "succeeded")),
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="erasure"):
            await erase(subject, pseudonym, its_entry)
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="by its erasure only"):
        await gateway.execute("delete from deputize.subjects")
    assert await gateway.fetchval("select count(*) from deputize.subjects") == 2
    await erase("ann", ann, entry.replace("OUTCOME", "succeeded"))
    assert await gateway.fetchval("select array_agg(subject) from deputize.subjects") == ["bob"]
    assert await gateway.fetchval("select bool_and(requested_at <= clock_timestamp()) from deputize.erasures")
    await gateway.close()


async def test_a_gateways_login_deletes_no_payload_of_today(logins: DatabaseLogins) -> None:
    gateway: asyncpg.Connection = await asyncpg.connect(logins.gateway)
    await gateway.execute("set role deputize_writer; call deputize.create_partitions(1)")
    await gateway.execute(
        "insert into deputize.sealed_payloads (tenant, id, kind, ciphertext) "
        "values ('acme', deputize.first_uuid_of_day((now() at time zone 'utc')::date), 'input', '')"
    )
    assert await gateway.fetchval("select deputize.delete_old_payloads(-30)") == 0
    assert await gateway.fetchval("select count(*) from deputize.sealed_payloads") == 1
    await gateway.close()


@pytest.mark.parametrize(
    ("grant", "power"),
    [
        ("alter role deputize_gateway superuser", "it is a superuser"),
        ("alter role deputize_gateway bypassrls", "it bypasses row-level security"),
        ("grant deputize_owner to deputize_gateway", "it is a member of deputize_owner"),
        ("grant deputize_migrator to deputize_gateway", "it is a member of deputize_owner"),
        ("grant pg_write_all_data to deputize_gateway", "it is a member of pg_write_all_data"),
        (
            "grant delete on deputize.audit_entries to deputize_writer",
            "it may update, delete or truncate audit entries",
        ),
        ("alter table deputize.audit_entries owner to deputize_gateway", "it owns 1 tables of the schema deputize"),
        ("alter schema deputize owner to deputize_gateway", "it owns the schema deputize"),
    ],
)
async def test_every_power_over_the_audit_is_found(
    logins: DatabaseLogins, postgres: LocalPostgres, grant: str, power: str
) -> None:
    undo = {
        "alter role deputize_gateway superuser": "alter role deputize_gateway nosuperuser",
        "alter role deputize_gateway bypassrls": "alter role deputize_gateway nobypassrls",
        "alter table deputize.audit_entries owner to deputize_gateway": (
            "alter table deputize.audit_entries owner to deputize_owner"
        ),
        "alter schema deputize owner to deputize_gateway": "alter schema deputize owner to deputize_owner",
    }.get(grant, grant.replace("grant", "revoke").replace(" to ", " from "))
    postgres.run_sql(grant, database=logins.name)
    settings = Settings(database=DatabaseSettings(url=logins.gateway))  # type: ignore[arg-type]  # pydantic makes the secret of it
    try:
        powers, _ = await read_powers(logins.gateway)
        assert power in powers
        with pytest.raises(ConfigError, match="deputize migrate --print-roles"):
            await asyncio.to_thread(database.require_gateway_login, settings)
    finally:
        postgres.run_sql(undo, database=logins.name)
    await asyncio.to_thread(database.require_gateway_login, settings)


async def test_what_an_owner_may_do_to_the_audit_is_found_by_trying(logins: DatabaseLogins) -> None:
    _, allowed = await read_powers(logins.migrator)
    assert allowed == ("update", "delete")
    _, allowed = await read_powers(logins.owner)
    assert allowed == ("update", "delete")


async def test_a_gateway_that_could_read_the_owners_login_is_refused(logins: DatabaseLogins) -> None:
    settings = Settings(
        database=DatabaseSettings(url=logins.gateway, migration_url=logins.migrator)  # type: ignore[arg-type]  # see above
    )
    with pytest.raises(ConfigError, match="only in the environment of deputize migrate"):
        await asyncio.to_thread(database.require_gateway_login, settings)


@pytest.fixture(scope="module")
def plain_server() -> Iterator[LocalPostgres]:
    """A server without any role of Deputize, as an operator gets it."""
    folder = Path(tempfile.mkdtemp(prefix="deputize-plain-"))
    folder.chmod(0o711)
    with LocalPostgres(folder / "db", settings={"fsync": "off"}) as server:
        yield server
    shutil.rmtree(folder, ignore_errors=True)


async def test_a_plain_owner_who_may_create_roles_takes_every_step_of_the_guide(plain_server: LocalPostgres) -> None:
    plain_server.run_sql("create role ops login createrole password 'ops'", database="postgres")
    plain_server.run_sql("create database plain owner ops", database="postgres")
    with create_logins(plain_server, "plain", f"postgresql://ops:ops@{_get_address(plain_server, 'plain')}") as logins:
        await migrate.upgrade_async(logins.migrator)
        assert await read_powers(logins.gateway) == ((), ())
        connection: asyncpg.Connection = await asyncpg.connect(logins.auditor)
        assert await connection.fetchval("select count(*) from deputize.audit_entries") == 0
        await connection.close()


def test_an_owner_who_may_not_create_roles_is_told_who_does_it(plain_server: LocalPostgres) -> None:
    plain_server.run_sql("create role poor login password 'poor'", database="postgres")
    plain_server.run_sql("create database modest owner poor", database="postgres")
    dsn = f"postgresql://poor:poor@{_get_address(plain_server, 'modest')}"
    with pytest.raises(ConfigError, match=r"lacks a privilege .*migrate --print-roles .*as an administrator"):
        database.upgrade_schema(dsn)


def _get_address(server: LocalPostgres, name: str) -> str:
    return server.dsn_for(name).partition("@")[2]
