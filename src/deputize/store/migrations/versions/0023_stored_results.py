"""Add the results that are stored behind references.

Revision ID: 0023_stored_results
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0023_stored_results"
down_revision = "0022_witnessed_checkpoints"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
