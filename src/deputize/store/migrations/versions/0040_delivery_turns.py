"""Build the index by which users take turns with their callbacks.

Revision ID: 0040_delivery_turns.
"""

from deputize.store.migrations import create_index_concurrently, set_lock_timeout

revision = "0040_delivery_turns"
down_revision = "0039_authority"
branch_labels = None
depends_on = None
kind = "expand"
oldest_release = "0.1.0"


def upgrade() -> None:
    set_lock_timeout()
    create_index_concurrently(
        "deliveries_by_user", "deliveries", "(tenant, caller_user, due_at) where due_at is not null"
    )


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
