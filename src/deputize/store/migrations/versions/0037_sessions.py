"""Let the state of a session of programs be stored beside the call that began it.

Revision ID: 0037_sessions. The previous release cannot read a contract whose programs have sessions, and runs none.
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0037_sessions"
down_revision = "0036_tasks"
branch_labels = None
depends_on = None
kind = "expand"
oldest_release = "0.1.0"


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
