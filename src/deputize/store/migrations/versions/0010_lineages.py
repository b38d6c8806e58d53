"""Add lineages: gateways notice a database that went back in time, and a person confirms that it is to be used.

Revision ID: 0010_lineages
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0010_lineages"
down_revision = "0009_erasures"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
