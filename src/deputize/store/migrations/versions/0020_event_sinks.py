"""Add the positions of event sinks in the tenants' logs, and queue entries for the log in the order of their commits.

Revision ID: 0020_event_sinks
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0020_event_sinks"
down_revision = "0019_transparency_log"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
