"""Keep what steps of flows returned for a while, so that a flow of many large results decrypts each of them once."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import asyncpg

from deputize.core.bounded_dict import BoundedDict
from deputize.core.states import FINAL_STATES

# Bytes of encrypted outcomes; opened ones take a few times as much.
_MAX_BYTES: Final = 33_554_432


class FlowOutcomes:
    """Opened outcomes of calls that have ended for good. Who uses one has seen that it is stored still."""

    def __init__(self) -> None:
        self._outcomes: BoundedDict[tuple[str, str], dict[str, Any]] = BoundedDict(_MAX_BYTES)

    def find(self, tenant: str, call_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Find the outcomes that are kept, by their calls."""
        found = ((call_id, self._outcomes.get((tenant, call_id))) for call_id in call_ids)
        return {call_id: outcome for call_id, outcome in found if outcome is not None}

    def keep(self, tenant: str, outcomes: Mapping[str, dict[str, Any]], rows: Collection[asyncpg.Record]) -> None:
        """Keep outcomes that were opened; one that is not known yet may still be settled."""
        for row in rows:
            call_id = str(row["id"])
            if call_id in outcomes and row["state"] in FINAL_STATES:
                self._outcomes.put((tenant, call_id), outcomes[call_id], len(row["ciphertext"]))
