"""Judge the login that a gateway uses: it must be able to add to the audit, and unable to change it."""

from pathlib import Path
from typing import Final

import asyncpg

from deputize.store.pool import READER, WRITER
from deputize.store.queries import load_statements

_SQL = load_statements("inspection")
_LOGINS_FILE = Path(__file__).parent / "migrations" / "logins.sql"
# Refused for lack of a privilege, which PostgreSQL checks before it looks for rows or waits for locks.
_CHANGES: Final = {
    "update": "update deputize.audit_entries set tenant = tenant where false",
    "delete": "delete from deputize.audit_entries where false",
}
# These lock the table if they are allowed, so they are tried only by logins that may do none of the above.
_LOCKING_CHANGES: Final = {
    "truncate": "truncate deputize.audit_entries",
    "alter": "alter table deputize.audit_entries no force row level security",
    "become the owner": "set local role deputize_owner",
}


def read_login_statements() -> str:
    """Read the SQL that creates the logins of a production database."""
    return _LOGINS_FILE.read_text()


async def list_login_powers(connection: asyncpg.Connection) -> tuple[str, ...]:
    """List what makes this login able to rewrite the audit; empty for the login of a gateway."""
    return tuple(row[0] for row in await connection.fetch(_SQL["list_login_powers"]))


async def list_allowed_audit_changes(connection: asyncpg.Connection) -> tuple[str, ...]:
    """Try to change the audit, as the login and as the roles of a gateway, and list what was not refused.

    Every attempt is rolled back.
    """
    names = await _try_changes(connection, _CHANGES)
    return names or await _try_changes(connection, _LOCKING_CHANGES)


async def _try_changes(connection: asyncpg.Connection, changes: dict[str, str]) -> tuple[str, ...]:
    successes: dict[str, None] = {}
    for role in ("none", WRITER, READER):
        for name, statement in changes.items():
            transaction = connection.transaction()
            await transaction.start()
            try:
                await connection.execute("set local lock_timeout = '1s'")
                await connection.execute(f"set local role {role}")
                await connection.execute(statement)
                successes[name] = None
            except asyncpg.InsufficientPrivilegeError:
                pass
            except asyncpg.LockNotAvailableError:
                successes[name] = None
            finally:
                await transaction.rollback()
    return tuple(successes)
