"""What callers see of a run: progress, its end told to whoever asked, going on and cancelling.

Revision ID: 0005
"""

from deputize.store.migrations import run_sql_file

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0005_webhooks.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
