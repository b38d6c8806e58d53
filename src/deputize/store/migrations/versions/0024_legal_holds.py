"""Add legal holds, which block erasure and retention, and the retention of audit entries, which keeps their hashes.

Revision ID: 0024_legal_holds
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0024_legal_holds"
down_revision = "0023_stored_results"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
