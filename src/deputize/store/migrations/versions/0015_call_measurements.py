"""Add what calls of each version took and how they ended, by day, to compare it with what contracts promise.

Revision ID: 0015_call_measurements
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0015_call_measurements"
down_revision = "0014_observed_values"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
