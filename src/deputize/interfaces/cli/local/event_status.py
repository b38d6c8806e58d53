"""Describe the event sinks of the settings and the database, without a gateway."""

import asyncio
from typing import Any

from deputize.core.settings import EventSinkSettings, Settings
from deputize.interfaces.cli.local import database
from deputize.operations.background.events.status import describe_sinks
from deputize.store.pool import Store


def load_sink_status(settings: Settings) -> list[dict[str, Any]]:
    """Load how far each sink has got; explain why the database does not answer."""
    dsn = database.require_dsn(settings)
    try:
        return asyncio.run(_open_and_describe(dsn, settings.events.sinks))
    except database.CONNECTION_ERRORS as error:
        raise database.explain_error(error, dsn) from error


async def _open_and_describe(dsn: str, sinks: tuple[EventSinkSettings, ...]) -> list[dict[str, Any]]:
    store = await Store.open(dsn, read_connections=1)
    try:
        async with store.write_transaction() as connection:
            return await describe_sinks(connection, sinks)
    finally:
        await store.close()
