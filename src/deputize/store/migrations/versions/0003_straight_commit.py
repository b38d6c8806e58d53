"""A straight way through the commit functions for batches that meet nothing known, which is nearly all of them.

Revision ID: 0003
"""

from deputize.store.migrations import run_sql_file

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0003_straight_commit.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
