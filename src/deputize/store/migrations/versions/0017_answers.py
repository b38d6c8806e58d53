"""Answers to some of a server's questions, kept until the others come.

Revision ID: 0017
"""

from deputize.store.migrations import run_sql_file

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql_file("0017_answers.sql")


def downgrade() -> None:
    raise RuntimeError("migrations only go forward; restore a backup to go back")
