"""Check for `deputize doctor` that the database contains what this machine's records and checkpoints say."""

from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings
from deputize.interfaces.cli.diagnostics.finding import Finding
from deputize.interfaces.cli.local import database
from deputize.interfaces.cli.render.output import format_count
from deputize.store.pool import Store
from deputize.store.restore_guard.checkpoint_files import CheckpointFiles
from deputize.store.restore_guard.lineage import WENT_BACK
from deputize.store.restore_guard.record_files import read_records
from deputize.store.restore_guard.recovery import load_state


async def check_lineage(settings: Settings, dsn: str) -> Finding:
    """Compare the database with what is recorded outside of it."""
    folder = database.locate_lineage(settings)
    try:
        records, checkpoints = read_records(folder), CheckpointFiles(folder)
        store = await Store.open(dsn, read_connections=1)
        try:
            state = await load_state(store, records, checkpoints)
        finally:
            await store.close()
    except (ConfigError, *database.CONNECTION_ERRORS) as error:
        return Finding(
            check="lineage", status="broken", summary="the records of the database cannot be compared", todo=str(error)
        )
    if state.loss is not None:
        todo = "find out what was lost, then run deputize recover confirm"
        return Finding(check="lineage", status="broken", summary=f"{WENT_BACK}: {state.loss}", todo=todo)
    count = len(checkpoints.list_expected(state.lineage))
    summary = "nothing was lost" if count == 0 else f"nothing was lost, {format_count(count, 'log')} compared"
    return Finding(check="lineage", status="good", summary=summary)
