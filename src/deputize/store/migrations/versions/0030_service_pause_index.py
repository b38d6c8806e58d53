"""Index the pauses that external services ask for.

Revision ID: 0030_service_pause_index
"""

from deputize.store.migrations import create_index_concurrently, set_lock_timeout

revision = "0030_service_pause_index"
down_revision = "0029_service_pauses"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    create_index_concurrently(
        "circuit_breakers_paused", "circuit_breakers", "(paused_until) where paused_until is not null"
    )


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
