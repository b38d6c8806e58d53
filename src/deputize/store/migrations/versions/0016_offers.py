"""MCP servers: resources, templates and prompts are agreed to as tools are.

Revision ID: 0016
"""

from deputize.store.migrations import run_sql_file

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0016_offers.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
