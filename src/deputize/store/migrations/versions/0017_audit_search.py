"""Add what searches the audit: the terms of entries, a bounded search, and the names behind pseudonyms.

Revision ID: 0017_audit_search
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0017_audit_search"
down_revision = "0016_server_effects"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
