"""Add the tokens of unlinked accounts that are still to be revoked at their authorization servers.

Revision ID: 0008_server_revocations
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0008_server_revocations"
down_revision = "0007_policy_proposals"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
