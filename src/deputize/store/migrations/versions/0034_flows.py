"""Flows: a call that is a step of a flow names it, and wakes it when it ends."""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0034_flows"
down_revision = "0033_journal"
branch_labels = None
depends_on = None
kind = "expand"
oldest_release = "0.1.0"


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
