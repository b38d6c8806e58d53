"""Erase everything about a person in batches, and keep the entries of a held person from before an erasure began.

Revision ID: 0027_erasure_batches
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0027_erasure_batches"
down_revision = "0026_circuit_breakers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
