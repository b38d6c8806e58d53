"""Let a gateway's login erase nobody without the audit entry that says so, and nobody vote twice by being erased.

Revision ID: 0031_erasure_entries
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0031_erasure_entries"
down_revision = "0030_service_pause_index"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
