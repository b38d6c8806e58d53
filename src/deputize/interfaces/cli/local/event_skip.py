"""Skip an event of a sink in the database of the settings, without a gateway, and record it."""

import asyncio
from collections.abc import Callable

from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.errors import Problem
from deputize.core.settings import Settings
from deputize.evidence.audit_entries import TimestampFormatter, encode_act
from deputize.interfaces.cli.local import database
from deputize.interfaces.cli.local.operator_identity import complete_caller, identify_operator
from deputize.operations.background.events.skip import SKIP_COMMAND, skip_event
from deputize.store.pool import Store
from deputize.store.queries import load_statements

_RUNS = load_statements("runs")


def skip_next_event(
    settings: Settings, sink: str, tenant: str, event_id: str, *, token: str, confirm: Callable[[], None]
) -> None:
    """Skip the next event of a tenant at a sink. In development, `confirm` asks the person in the terminal."""
    dsn = database.require_dsn(settings)
    is_development = database.get_direct_dsn(settings) is None

    async def open_and_skip() -> None:
        store = await Store.open(dsn, read_connections=1)
        try:
            person, rule = await identify_operator(settings, store, token, is_development=is_development)
            if person is None:
                confirm()
            clock = Clock()
            async with store.write_transaction() as connection:
                await skip_event(connection, sink, tenant, event_id)
                caller = await complete_caller(store, clock, tenant, person)
                entry_id, time = clock.new_id(), TimestampFormatter(clock).now()
                subject = f"sink={sink} event={event_id}"
                body = encode_act(
                    caller, id=entry_id, time=time, command=SKIP_COMMAND, subject=subject, confirmation=rule
                )
                await connection.execute(_RUNS["insert_audit_entry"], tenant, entry_id, None, body, None)
        finally:
            await store.close()

    try:
        asyncio.run(open_and_skip())
    except Problem as problem:
        raise ConfigError(f"{problem.message[:1].upper()}{problem.message[1:]}. {problem.advice}") from problem
    except database.CONNECTION_ERRORS as error:
        raise database.explain_error(error, dsn) from error
