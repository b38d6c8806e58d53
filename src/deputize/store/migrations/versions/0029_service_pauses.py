"""Add the pauses that external services ask for.

Revision ID: 0029_service_pauses
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0029_service_pauses"
down_revision = "0028_bounded_queue"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
