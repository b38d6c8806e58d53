"""Refuse changes of a call's state that its transitions do not allow.

Revision ID: 0011_call_transitions
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0011_call_transitions"
down_revision = "0010_lineages"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
