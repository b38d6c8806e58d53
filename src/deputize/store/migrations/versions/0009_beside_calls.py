"""What reads all calls there are, done beside those that are being made.

Revision ID: 0009
"""

from alembic import op

from deputize.store.migrations import run_sql_file

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_PARTITIONS = """
    select child.relname from pg_inherits join pg_class child on child.oid = inhrelid
    where inhparent = 'deputize.calls'::regclass order by 1
"""
_BROKEN_OFF = "select count(*) from pg_index where indexrelid = to_regclass('deputize.{name}') and not indisvalid"


def upgrade() -> None:
    # Everything here can be done again: it commits step by step, and whoever is stopped half way begins anew.
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        for (partition,) in connection.exec_driver_sql(_PARTITIONS).fetchall():
            name = f"{partition}_queued"
            if connection.exec_driver_sql(_BROKEN_OFF.format(name=name)).scalar():
                connection.exec_driver_sql(f"drop index concurrently deputize.{name}")
            connection.exec_driver_sql(
                f"create index concurrently if not exists {name} on deputize.{partition} (tenant, id) "
                "where state = 'queued'"
            )
        # Finds its parts made, and so makes none: this holds writers back for a moment only.
        connection.exec_driver_sql(
            "create index if not exists calls_queued on deputize.calls (tenant, id) where state = 'queued'"
        )
    run_sql_file("0009_unknown_before.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
