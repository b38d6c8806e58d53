"""Delete grants that ended, revocations of their ids and decision records that nothing relied on lately.

Revision ID: 0004_retention
Revises: 0003_primary_issuers
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0004_retention"
down_revision = "0003_primary_issuers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
