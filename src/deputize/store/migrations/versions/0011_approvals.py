"""Approvals: calls that wait for people, and what people said.

Revision ID: 0011
"""

from deputize.store.migrations import run_sql_file

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0011_approvals.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
