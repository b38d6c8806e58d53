"""Index what the deletion of ended grants and old decision records looks for.

Revision ID: 0005_retention_indexes
Revises: 0004_retention
"""

from deputize.store.migrations import create_index_concurrently, set_lock_timeout

revision = "0005_retention_indexes"
down_revision = "0004_retention"
branch_labels = None
depends_on = None


def upgrade() -> None:
    set_lock_timeout()
    create_index_concurrently("grants_by_parent", "grants", "(tenant, parent) where parent is not null")
    create_index_concurrently("grants_by_end", "grants", "(not_after)")
    create_index_concurrently("decisions_by_last_use", "decisions", "(last_at)")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
