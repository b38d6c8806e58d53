"""Forward-only migrations in plain SQL, each safe on a live system with the previous release still serving.

A revision is one file `versions/NNNN_topic.py` with its SQL beside it, in `NNNN_topic.sql` or the folder `NNNN_topic`.
It keeps these rules, which `python -m checks.migrations` checks:

1. `upgrade` begins with `set_lock_timeout()`: a migration that waits for a lock holds up everybody behind it, and calls
   must not time out there. So it gives up soon, and `migrate.py` tries the revision again.
2. An index on a table that exists is built with `create_index_concurrently`, in a revision that does nothing else: it
   commits step by step, and can be repeated from anywhere. A plain `create index` is for tables of the same revision.
3. A table with a tenant is secured with `select deputize.secure_table(...)`; a revision that adds functions repeats the
   statements of `0032_release/4_privileges.sql`.
4. `kind = "expand"` only adds what older releases do not stumble over. What they use is dropped in a later release, by
   `kind = "contract"`. `oldest_release` names the oldest release that runs on the schema after it, which an expand
   leaves as it was. `deputize migrate` refuses a contract while an older release is alive; one that starts later reads
   it in `schema_version`, and refuses to.
5. A revision that was released is never edited. `python -m checks.schema --write` renews `store/schema.sql`.
"""

from pathlib import Path
from typing import Any, Final

from alembic import op

LOCK_TIMEOUT_SECONDS: Final = 0.3
_FOLDER = Path(__file__).parent / "versions"
_PARTITIONS = """
    select child.relname from pg_inherits join pg_class child on child.oid = inhrelid
    where inhparent = 'deputize.{table}'::regclass order by 1
"""
_IS_INVALID = "select count(*) from pg_index where indexrelid = to_regclass('deputize.{name}') and not indisvalid"


def set_lock_timeout(seconds: float = LOCK_TIMEOUT_SECONDS) -> None:
    """Make this revision fail, without a trace, rather than wait longer than this for a lock."""
    run_sql(f"set lock_timeout = {int(seconds * 1000)}")


def run_sql_files(revision: str) -> None:
    """Run the SQL of a revision: the file of its name, or the files in the folder of its name, in their order."""
    for path in (*_FOLDER.glob(f"{revision}.sql"), *sorted((_FOLDER / revision).glob("*.sql"))):
        run_sql(path.read_text(encoding="utf-8"))


def create_index_concurrently(name: str, table: str, definition: str, *, unique: bool = False) -> None:
    """Build an index without holding up writers, such as `("calls_queued", "calls", "(id) where state = 'queued'")`.

    Of a partitioned table, the index of each partition is built first, then the parent's is made of them. Commits
    what the revision did before, and repairs what an earlier attempt left unfinished.
    """
    create = "create unique index" if unique else "create index"
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        # It waits for every transaction that is older than it, and no one waits for it: a timeout would only fail it.
        run_sql("set lock_timeout = 0")
        partitions = [each for (each,) in connection.exec_driver_sql(_PARTITIONS.format(table=table)).fetchall()]
        suffix = name.removeprefix(f"{table}_")
        for target, index in [(each, f"{each}_{suffix}") for each in partitions] or [(table, name)]:
            if connection.exec_driver_sql(_IS_INVALID.format(name=index)).scalar():
                run_sql(f"drop index concurrently deputize.{index}")
            run_sql(f"{create} concurrently if not exists {index} on deputize.{target} {definition}")
        set_lock_timeout()
        if partitions:
            # Finds the indexes of the partitions and builds none, so writers are held up for a moment only.
            run_sql(f"{create} if not exists {name} on deputize.{table} {definition}")


def run_sql(sql: str) -> None:
    """Run statements as they are, with asyncpg's errors; its own protocol allows what a prepared statement does not."""
    # The driver begins the transaction with the first statement it sees; what goes past it would be in none.
    op.get_bind().exec_driver_sql("select 1")
    connection: Any = op.get_bind().connection.dbapi_connection
    connection.run_async(lambda raw: raw.execute(sql))
