"""Add what calls cost, by component, day, tool, caller and task.

Revision ID: 0025_call_costs
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0025_call_costs"
down_revision = "0024_legal_holds"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
