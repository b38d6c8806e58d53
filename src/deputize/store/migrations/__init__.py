"""Forward-only migrations in plain SQL, each safe on a live system with the previous release still serving."""

from pathlib import Path
from typing import Any

from alembic import op

_FOLDER = Path(__file__).parent / "versions"


def run_sql_file(name: str) -> None:
    """Runs a file of many statements as it is; asyncpg's own protocol allows what a prepared statement does not."""
    sql = (_FOLDER / name).read_text()
    # The driver begins a transaction with the first statement it sees; what goes past it would be in none.
    op.get_bind().exec_driver_sql("select 1")
    connection: Any = op.get_bind().connection.dbapi_connection
    connection.run_async(lambda raw: raw.execute(sql))
