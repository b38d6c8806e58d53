"""Give out receipts of calls: what proves later, without a gateway, what was recorded of them."""

from typing import Any

from deputize.core.caller import Caller
from deputize.evidence.tenant_log.receipts import make_receipt
from deputize.lifecycle.runtime import Runtime
from deputize.operations.calls.queries import CallQueries
from deputize.store.queries import load_statements

_CALLS = load_statements("calls")


class CallReceipts:
    def __init__(self, runtime: Runtime, calls: CallQueries) -> None:
        self._runtime = runtime
        self._calls = calls

    async def make_receipt(self, caller: Caller, call_id: str) -> dict[str, Any]:
        """Make the receipt of the newest audit entry of a call that the caller may see."""
        facts = await self._calls.describe_call(caller, call_id)
        async with self._runtime.store.read_transaction(caller.tenant, repeatable=True) as connection:
            rows = await connection.fetch(_CALLS["list_entries_of_call"], caller.tenant, facts["call_id"])
            entry_id = str(rows[-1]["id"])
            receipt, keys = await make_receipt(connection, caller.tenant, entry_id, rows[-1]["entry"])
        return {"call_id": facts["call_id"], "entry_id": entry_id, "receipt": receipt, "verifier_keys": keys}
