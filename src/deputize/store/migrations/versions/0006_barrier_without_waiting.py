"""Let the group commit take barriers without waiting, so that one tenant's acts delay no other tenant's calls.

Revision ID: 0006_barrier_without_waiting
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0006_barrier_without_waiting"
down_revision = "0005_retention_indexes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
