"""Make the login that gateways use in production, so that no proof runs with the rights of the schema's owner."""

from urllib.parse import urlsplit, urlunsplit

import asyncpg

from deputize.store.logins import read_login_statements

_LOGIN, _PASSWORD = "deputize_gateway", "proof"


async def create_gateway_login(owner_dsn: str) -> None:
    """Create the logins of a production database, once per server, with a password for that of gateways."""
    connection = await asyncpg.connect(owner_dsn)
    try:
        # One at a time: roles belong to the server, and gateways of one proof start at once.
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock(hashtextextended('proofs.logins', 0))")
            await connection.execute(read_login_statements())
            await connection.execute(f"alter role {_LOGIN} password '{_PASSWORD}'")
    finally:
        await connection.close()


def use_gateway_login(dsn: str) -> str:
    """Return the address of the same database with the login of gateways."""
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{_LOGIN}:{_PASSWORD}@{parts.netloc.rpartition('@')[2]}"))
