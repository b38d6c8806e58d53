"""Add what tools said about the same thing, and what they disagree about.

Revision ID: 0014_observed_values
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0014_observed_values"
down_revision = "0013_contract_tests"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
