"""Search every table of a gateway for texts that must not be there."""

from collections.abc import Iterable

import asyncpg

_TABLES = """
    select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'deputize' and c.relkind in ('r', 'p') and not c.relispartition order by 1
"""


async def list_tables_with(dsn: str, texts: Iterable[str]) -> list[str]:
    """List the tables that hold one of the texts in any column."""
    db = await asyncpg.connect(dsn)
    try:
        names = [row["relname"] for row in await db.fetch(_TABLES)]
        rows = {name: await db.fetch(f'select row_to_json(t)::text as text from deputize."{name}" t') for name in names}
    finally:
        await db.close()
    return [name for name in names if any(text in row["text"] for row in rows[name] for text in texts)]
