"""Add the issuers whose subjects a tenant stores by their bare names.

Revision ID: 0003_primary_issuers
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0003_primary_issuers"
down_revision = "0002_key_rotation"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
