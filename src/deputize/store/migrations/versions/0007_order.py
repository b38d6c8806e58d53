"""Calls that touch the same things wait for each other; runs are queued, begun and ended in batches.

Revision ID: 0007
"""

from deputize.store.migrations import run_sql_file

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0007_order.sql")
    run_sql_file("0007_commit_runs.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
