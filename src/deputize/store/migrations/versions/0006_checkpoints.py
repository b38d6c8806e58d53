"""Checkpoints of long tools, and runs that go on from one.

Revision ID: 0006
"""

from deputize.store.migrations import run_sql_file

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0006_checkpoints.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
