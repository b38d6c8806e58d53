"""The spine: roles, tables, row-level security, the commit functions.

Revision ID: 0001
"""

from deputize.store.migrations import run_sql_file

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0001_spine.sql")
    run_sql_file("0001_commit.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
