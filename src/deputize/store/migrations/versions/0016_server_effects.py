"""Add the effects of servers' tools that an operator confirmed.

Revision ID: 0016_server_effects
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0016_server_effects"
down_revision = "0015_call_measurements"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
