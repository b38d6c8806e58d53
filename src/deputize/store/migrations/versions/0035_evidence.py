"""Close ways to take evidence back: an unsigned expiry, a hold that vanishes, an entry that is never logged.

Revision ID: 0035_evidence. The previous release still runs beside it: each of its statements on these tables does what
the new rules ask for, so its grants stay. Only its retention of entries deletes nothing any more, because it does not
sign; a gateway of this release does that work.
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0035_evidence"
down_revision = "0034_flows"
branch_labels = None
depends_on = None
kind = "expand"
oldest_release = "0.1.0"


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
