"""What time does to approvals: escalation, reminders, the end, and the letters that tell people of them.

Revision ID: 0012
"""

from deputize.store.migrations import run_sql_file

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0012_approval_time.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
