"""Add proposals of policies, which wait for a second operator.

Revision ID: 0007_policy_proposals
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0007_policy_proposals"
down_revision = "0006_barrier_without_waiting"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
