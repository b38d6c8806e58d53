"""Add the checkpoints that witnesses cosigned.

Revision ID: 0022_witnessed_checkpoints
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0022_witnessed_checkpoints"
down_revision = "0021_recent_measurements"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
