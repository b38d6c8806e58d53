"""Authority: policies and decisions, grants and signing keys, switches, secrets, budgets.

Revision ID: 0002
"""

from deputize.store.migrations import run_sql_file

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0002_authority.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
