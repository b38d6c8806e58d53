"""Alembic's entry: runs the migrations on the connection that `store/migrate.py` hands over."""

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo
from alembic.script import Script


def write_oldest_release(ctx: MigrationContext, step: MigrationInfo, heads: object, run_args: object) -> None:
    """Write which releases run on the schema, in the transaction that changes it, for the older ones that start."""
    connection, revision = ctx.connection, step.up_revision
    assert connection is not None  # migrations run on a connection, never as a script
    assert isinstance(revision, Script)  # what alembic makes of a file
    connection.exec_driver_sql("alter table deputize.schema_version add column if not exists oldest_release text")
    connection.exec_driver_sql(
        "update deputize.schema_version set oldest_release = $1", (revision.module.oldest_release,)
    )


context.configure(
    connection=context.config.attributes["connection"],
    version_table="schema_version",
    version_table_schema="deputize",
    transaction_per_migration=True,
    on_version_apply=write_oldest_release,
)
with context.begin_transaction():
    context.run_migrations()
