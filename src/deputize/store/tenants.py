"""Create the rows of a tenant when its first caller appears."""

from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("keys")


async def ensure_tenant(connection: Connection, tenant: str) -> None:
    """Create the tenant and its epochs unless they exist; safe to repeat and to run concurrently."""
    await connection.execute(_SQL["ensure_tenant"], tenant)
