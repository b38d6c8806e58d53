"""Skip the event that a receiver refuses for good, so that the tenant's later events are sent."""

from typing import Final

from deputize.core.config_error import ConfigError
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

# The act in the audit entry of the event's tenant.
SKIP_COMMAND: Final = "skip_event"
_SQL = load_statements("events")


async def skip_event(connection: Connection, sink: str, tenant: str, event_id: str) -> None:
    """Move the tenant's position at a sink behind its next event, which has to be the named one.

    Only the next one: whatever else is skipped by it would be lost without a trace.
    """
    # Locked as by the process that sends, so that the position does not move meanwhile.
    if await connection.fetchval(_SQL["lock_sink"], sink) is None:
        raise ConfigError(f"There is no event sink {sink} in this database: deputize events status lists the sinks.")
    row = await connection.fetchrow(_SQL["load_next_event"], sink, tenant)
    if row is None:
        raise ConfigError(f"There is no tenant {tenant} in this database.")
    if row["entry_id"] is None:
        raise ConfigError(f"Nothing was skipped: {sink} has every event of {tenant}.")
    if str(row["entry_id"]) != event_id:
        raise ConfigError(
            f"Nothing was skipped: the next event of {tenant} for {sink} is {row['entry_id']}; only that one can be."
        )
    await connection.execute(_SQL["move_positions"], sink, [tenant], [row["next_index"] + 1])
