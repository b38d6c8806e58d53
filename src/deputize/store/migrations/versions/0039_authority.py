"""Store by which delegation a result was made, and give the users of a tenant turns in its queue.

Revision ID: 0039_authority. Results of the previous release have no delegation, and are read by their users alone.
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0039_authority"
down_revision = "0038_effects"
branch_labels = None
depends_on = None
kind = "expand"
oldest_release = "0.1.0"


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
