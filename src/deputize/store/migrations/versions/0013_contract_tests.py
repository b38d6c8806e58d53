"""Add results of contract tests: signed, kept in the registry, and told to the owner when they turn red.

Revision ID: 0013_contract_tests
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0013_contract_tests"
down_revision = "0012_deprecations"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
