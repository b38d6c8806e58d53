"""Tenants are told of their runs in turn, and what is over is found without reading all there is.

Revision ID: 0010
"""

from deputize.store.migrations import run_sql_file

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0010_in_turn.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
