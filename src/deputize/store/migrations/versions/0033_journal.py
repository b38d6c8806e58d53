"""Add the journal: what each write did and how it is taken back, committed with its outcome.

Revision ID: 0033_journal.
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0033_journal"
down_revision = "0032_release"
branch_labels = None
depends_on = None
kind = "expand"
oldest_release = "0.1.0"


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
