"""`schema.sql` shows what a fresh database is."""

import pytest

from checks import schema
from deputize.store.local_postgres import LocalPostgres


def test_a_fresh_database_equals_schema_sql(module_database: str) -> None:
    written = schema.FILE.read_text(encoding="utf-8")
    assert schema.arrange(schema.dump(module_database)) == written, "run python -m checks.schema --write"


@pytest.mark.parametrize(
    "change",
    [
        "alter table deputize.calls no force row level security",
        "grant delete on deputize.audit_entries to deputize_writer",
        "drop index deputize.calls_queued",
        "create index on deputize.runs (release)",
        "alter function deputize.commit_calls reset plan_cache_mode",
        "grant execute on function deputize.secure_table to public",
        "alter table deputize.tools alter outward_name drop not null",
        "drop trigger calls_release_locks on deputize.calls",
        "drop policy one_tenant on deputize.grants",
    ],
)
def test_a_changed_database_does_not(change: str, fresh_database: str, postgres: LocalPostgres) -> None:
    postgres.run_sql(change, database=fresh_database.rsplit("/", 1)[1])
    assert schema.arrange(schema.dump(fresh_database)) != schema.FILE.read_text(encoding="utf-8")


def test_days_leave_no_trace_in_it(fresh_database: str, postgres: LocalPostgres) -> None:
    postgres.run_sql("call deputize.create_partitions(30)", database=fresh_database.rsplit("/", 1)[1])
    assert schema.arrange(schema.dump(fresh_database)) == schema.FILE.read_text(encoding="utf-8")
