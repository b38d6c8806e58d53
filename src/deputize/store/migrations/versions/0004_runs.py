"""Runs: calls that outlive their request.

Revision ID: 0004
"""

from deputize.store.migrations import run_sql_file

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0004_runs.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
