"""Bound the queued calls of each tenant.

Revision ID: 0028_bounded_queue
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0028_bounded_queue"
down_revision = "0027_erasure_batches"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
