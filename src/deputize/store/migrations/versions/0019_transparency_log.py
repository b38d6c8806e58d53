"""Add a transparency log for each tenant: its queue, leaves, inner nodes, checkpoints and keys.

Revision ID: 0019_transparency_log
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0019_transparency_log"
down_revision = "0018_audit_indexes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
