"""Let keys be rotated: from when a tenant's key seals, and which master key wrapped it.

Revision ID: 0002_key_rotation
Revises: 0001_initial
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0002_key_rotation"
down_revision = "0001_initial"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
