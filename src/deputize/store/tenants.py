"""The rows every tenant stands on, made the first time somebody of that tenant appears."""

from deputize.store.pool import Connection
from deputize.store.queries import load

_SQL = load("keys")


async def ensure_tenant(connection: Connection, tenant: str) -> None:
    """The tenant and its epochs, if they are not there yet; safe to repeat and to race."""
    await connection.execute(_SQL["ensure_tenant"], tenant)
