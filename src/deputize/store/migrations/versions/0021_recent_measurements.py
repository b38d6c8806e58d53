"""Add how calls of the last minutes ended and what they took, by minute, for the health of tools.

Revision ID: 0021_recent_measurements
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0021_recent_measurements"
down_revision = "0020_event_sinks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
