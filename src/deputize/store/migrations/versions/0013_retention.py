"""What is kept for a while is forgotten after it.

Revision ID: 0013
"""

from deputize.store.migrations import run_sql_file

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0013_retention.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
