"""Add erasures: what is stored about a person is deleted or made anonymous, in batches that any process continues.

Revision ID: 0009_erasures
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0009_erasures"
down_revision = "0008_server_revocations"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
