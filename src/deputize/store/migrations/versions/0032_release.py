"""Create the schema of the first release: roles' rights, tables, functions, triggers.

Revision ID: 0032_release. Those before it were of development versions, which no release upgrades.
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0032_release"
down_revision = None
branch_labels = None
depends_on = None
kind = "expand"
oldest_release = "0.1.0"


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
