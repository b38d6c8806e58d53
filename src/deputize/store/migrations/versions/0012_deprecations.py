"""Add notices of deprecated versions, and who still uses them.

Revision ID: 0012_deprecations
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0012_deprecations"
down_revision = "0011_call_transitions"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
