"""Let a task for a person be about more than an unknown outcome: a fallback, a compensation, or a request to undo.

Revision ID: 0036_tasks. The previous release neither opens nor shows tasks of the new kinds.
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0036_tasks"
down_revision = "0035_evidence"
branch_labels = None
depends_on = None
kind = "expand"
oldest_release = "0.1.0"


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
