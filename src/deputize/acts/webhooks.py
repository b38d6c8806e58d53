"""Administer webhooks: show the key that receivers verify with, and retry the deliveries that were given up."""

import base64
import contextlib
from typing import Any, Final
from uuid import UUID

from deputize.acts.act import commit_act, commit_operator_act
from deputize.core.caller import Caller
from deputize.core.errors import DeliveryNotFound, MalformedRequest, UnsealFailed
from deputize.core.settings.events import APPROVALS_KEY
from deputize.execute.egress import normalize_host
from deputize.govern.token_authorization import require_admin, require_full_admin
from deputize.lifecycle.callbacks import get_callback_host, parse_callback
from deputize.lifecycle.runtime import Runtime
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("webhooks")
_SECRET_PREFIX: Final = "whsec_"


class WebhookAdmin:
    """Webhook administration: the key that receivers verify with, and the deliveries that were given up."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def show_key(self, caller: Caller, name: str, host: str | None = None) -> dict[str, str | None]:
        """Show the key to an operator and record that: whoever has it can sign in the gateway's name.

        With a host it is the key of callbacks to it, without one that of an event sink or of approval requests.
        """
        require_full_admin(caller)
        host = None if host is None else normalize_host(host)
        self._require_name(name, host)
        keys = await self._runtime.keys.load(caller.tenant)

        async def act(_: Connection, __: str | None) -> str:
            return _SECRET_PREFIX + base64.b64encode(keys.derive_webhook_keys(name, callback_host=host)[0]).decode()

        subject = name if host is None else f"{name} for {host}"
        secret = await commit_operator_act(self._runtime, caller, "show_webhook_key", subject, act)
        return {"name": name, "host": host, "secret": secret}

    def _require_name(self, name: str, host: str | None) -> None:
        sinks = [each.name for each in self._runtime.settings.events.sinks if each.kind == "webhook"]
        if host is None and name not in (*sinks, APPROVALS_KEY):
            raise MalformedRequest(
                f"there is no event sink {name}, and callbacks to each host have a key of their own",
                details={"field": "host", "names": [*sinks, APPROVALS_KEY]},
                advice="For callbacks, say the host of the receiver: deputize webhooks key NAME --host HOST.",
            )

    async def list_dead_letters(self, caller: Caller, limit: int) -> list[dict[str, Any]]:
        require_admin(caller)
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)
        keys = await self._runtime.keys.load(caller.tenant)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(_SQL["list_dead_letters"], caller.tenant, limit)
        return [
            {
                "id": str(row["id"]),
                "call_id": str(row["call_id"]),
                "state": row["state"],
                "host": _decrypt_callback_host(keys, str(row["call_id"]), row["request"]),
                "attempts": row["attempts"],
                "problem": row["problem"],
                "created_at": row["created_at"].isoformat(),
                "dead_at": row["dead_at"].isoformat(),
            }
            for row in rows
        ]

    async def retry_delivery(self, caller: Caller, delivery_id: str) -> dict[str, Any]:
        """Make a dead delivery due again, with as many attempts as a new one."""
        require_full_admin(caller)
        not_found = DeliveryNotFound("no failed delivery has this id", details={"id": delivery_id[:64]})
        try:
            delivery_uuid = str(UUID(delivery_id))
        except ValueError:
            raise not_found from None

        async def act(connection: Connection) -> str:
            call_id = await connection.fetchval(_SQL["retry_dead_letter"], caller.tenant, delivery_uuid)
            if call_id is None:
                raise not_found
            return str(call_id)

        call_id = await commit_act(self._runtime, caller, "retry_delivery", delivery_uuid, act, ())
        return {"id": delivery_uuid, "call_id": call_id, "retry": "due"}


def _decrypt_callback_host(keys: KeySet, call_id: str, ciphertext: bytes) -> str:
    """Decrypt the callback's host; empty if that fails, so that one bad row does not hide the others."""
    with contextlib.suppress(UnsealFailed, KeyError, ValueError):
        return get_callback_host(parse_callback(keys.unseal(call_id, "callback", ciphertext)))
    return ""
