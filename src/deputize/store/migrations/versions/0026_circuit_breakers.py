"""Add the circuit breakers of external services and their history.

Revision ID: 0026_circuit_breakers
"""

from deputize.store.migrations import run_sql_files, set_lock_timeout

revision = "0026_circuit_breakers"
down_revision = "0025_call_costs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    run_sql_files(revision)


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
