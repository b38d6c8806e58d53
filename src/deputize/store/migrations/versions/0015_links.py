"""People's accounts at MCP servers: links that are made once, sign-ins that were begun, and who we are there.

Revision ID: 0015
"""

from deputize.store.migrations import run_sql_file

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0015_links.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
