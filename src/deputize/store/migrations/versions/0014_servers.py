"""MCP servers: what somebody agreed to of what they say, and what they say otherwise since.

Revision ID: 0014
"""

from deputize.store.migrations import run_sql_file

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0014_servers.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
