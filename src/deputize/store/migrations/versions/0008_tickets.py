"""Tickets for people to decide about, and outcomes nobody knows as work to be done.

Revision ID: 0008
"""

from deputize.store.migrations import run_sql_file

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0008_tickets.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
