"""Deliver the outcomes of runs to their callbacks, until each is delivered or given up.

Every worker runs one; they share the work by skipping locked rows. A delivery is postponed before it is attempted, so
if the process dies it is attempted again: at least once, with the same `webhook-id` to recognise it.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import asyncpg
import orjson
import structlog

from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.call import Callback
from deputize.core.errors import Problem
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.core.sensitive.marks import REDACTION_MARK
from deputize.core.sensitive.text import redact_text
from deputize.core.states import EVENT_BY_STATE, State
from deputize.evidence.redaction.free_text import FreeTextRedactor
from deputize.evidence.redaction.plan import RedactionPlan
from deputize.lifecycle.callbacks import (
    CLOUDEVENTS_MEDIA_TYPE,
    SendWebhook,
    compute_delivery_backoff,
    derive_callback_keys,
    is_trusted_host,
    parse_callback,
    sign_delivery,
)
from deputize.lifecycle.recording.redaction import get_redaction_plan
from deputize.lifecycle.recording.stored_call import StoredInput
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

_SQL = load_statements("webhooks")
_MAX_CONCURRENT: Final = 40
# Per tenant, and per user of it: slow receivers can occupy only these slots.
_MAX_PER_TENANT: Final = 5
_MAX_PER_USER: Final = 2
_DESCRIPTIONS: Final = ("summary", "search_text")
_MAX_BYTES: Final = 900_000
_HTTP_GONE: Final = 410
log = structlog.get_logger(__name__)


class Deliveries(PeriodicTask):
    """Delivers the outcomes of calls to their callbacks, tenant by tenant, and in each of them user by user."""

    task_name = "deliveries"
    tolerated_errors = CONNECTION_ERRORS

    def __init__(self, runtime: Runtime, send: SendWebhook) -> None:
        super().__init__()
        self._runtime = runtime
        self._send = send
        # Whose each is: the tenant and the user.
        self._active_tasks: dict[asyncio.Task[None], tuple[str, str]] = {}
        self._last_tenant = ""
        # The user served last, of tenants whose other users wait.
        self._last_users: dict[str, str] = {}

    @property
    def interval_seconds(self) -> float:
        return self._runtime.settings.timing.sweep_seconds

    async def run_step(self) -> float:
        """Start the deliveries that are due; when there is nothing to start, wait until one ends."""
        start_count = await self._start_due()
        if start_count and len(self._active_tasks) < _MAX_CONCURRENT:
            return 0.0
        if not self._active_tasks:
            return self.interval_seconds
        await asyncio.wait(self._active_tasks, timeout=self.interval_seconds, return_when=asyncio.FIRST_COMPLETED)
        return 0.0

    def report_error(self, error: Exception) -> None:
        log.warning("deliveries_failed", reason=repr(error))

    async def stop(self) -> None:
        """Stop the loop, then cancel the deliveries under way."""
        await super().stop()
        for task in self._active_tasks:
            task.cancel()
        if self._active_tasks:
            await asyncio.wait(self._active_tasks)

    async def _start_due(self) -> int:
        """Start due deliveries in the free slots, tenant by tenant and user by user; return how many."""
        seconds, free_slots = self._runtime.settings.webhooks.seconds, _MAX_CONCURRENT - len(self._active_tasks)
        if not free_slots:
            return 0
        user_counts = Counter(self._active_tasks.values())
        tenant_counts = Counter(tenant for tenant, _ in self._active_tasks.values())
        busy_users = [user for user, count in user_counts.items() if count >= _MAX_PER_USER]
        busy_tenants = [tenant for tenant, count in tenant_counts.items() if count >= _MAX_PER_TENANT]
        async with self._runtime.store.write_transaction() as connection:
            due = await connection.fetch(
                _SQL["take_due_deliveries"], free_slots, seconds + 30, _MAX_PER_TENANT, self._last_tenant, busy_tenants,
                list(self._last_users), list(self._last_users.values()),
                [tenant for tenant, _ in busy_users], [user for _, user in busy_users],
            )  # fmt: skip
        # Tenants take turns: start after the last one served, and from the beginning once all were served. So do the
        # users of a tenant.
        previous_tenant, self._last_tenant = self._last_tenant, ""
        if len(due) == free_slots:
            self._last_tenant = max(row["tenant"] for row in due)
        begins_anew = self._note_last_users([(row["tenant"], row["caller_user"]) for row in due], busy_tenants)
        for row in due:
            task = asyncio.create_task(self._deliver(row), name=f"delivery-{row['id']}")
            self._active_tasks[task] = (row["tenant"], row["caller_user"])
            task.add_done_callback(self._active_tasks.pop)
        return len(due) or bool(previous_tenant) or begins_anew

    def _note_last_users(self, served: Sequence[tuple[str, str]], busy_tenants: Sequence[str]) -> bool:
        """Note the last user of tenants that had no more slots; return whether others begin at their first user."""
        counts = Counter(tenant for tenant, _ in served)
        last_users = {tenant: user for tenant, user in sorted(served) if counts[tenant] == _MAX_PER_TENANT}
        waiting = {tenant: user for tenant, user in self._last_users.items() if tenant in busy_tenants}
        begins_anew = bool(self._last_users.keys() - waiting.keys() - last_users.keys())
        self._last_users = waiting | last_users
        return begins_anew

    async def _deliver(self, row: asyncpg.Record) -> None:
        try:
            await self._attempt_delivery(row)
        except CONNECTION_ERRORS as error:
            # It was postponed when it was taken, so a worker attempts it again later.
            log.warning("delivery_lost", delivery_id=str(row["id"]), reason=type(error).__name__)

    async def _attempt_delivery(self, row: asyncpg.Record) -> None:
        try:
            problem, final = await self._send_event(row)
        except CONNECTION_ERRORS:
            raise
        except Exception as fault:
            # It counts as an attempt: a failing delivery must neither stop the others nor be repeated for ever.
            log.exception("delivery_failed", delivery_id=str(row["id"]), reason=type(fault).__name__)
            problem, final = f"the gateway could not send it ({type(fault).__name__})", False
        settings, tenant, delivery_id = self._runtime.settings.webhooks, row["tenant"], row["id"]
        async with self._runtime.store.write_transaction() as connection:
            if problem is None:
                await connection.execute(_SQL["mark_delivered"], tenant, delivery_id)
            elif final or row["attempts"] >= settings.attempts:
                await connection.execute(_SQL["mark_delivery_dead"], tenant, delivery_id, problem)
                log.warning("delivery_given_up", delivery_id=str(delivery_id), call_id=str(row["call_id"]))
            else:
                delay = compute_delivery_backoff(settings.retry_seconds, row["attempts"])
                await connection.execute(_SQL["postpone_delivery"], tenant, delivery_id, delay, problem)

    async def _send_event(self, row: asyncpg.Record) -> tuple[str | None, bool]:
        """Send the event; return why that failed, or None, and whether another attempt would be useless."""
        runtime, tenant, call_id = self._runtime, row["tenant"], str(row["call_id"])
        try:
            keys = await runtime.keys.get(tenant)
            async with runtime.store.write_transaction() as connection:
                call = await connection.fetchrow(_SQL["load_delivery_content"], tenant, call_id)
            if call is None:
                return "the call is no longer stored", True
            callback = parse_callback(keys.unseal(call_id, "callback", call["request"]))
            body = await self._build_event(row, call, callback)
            signing_keys = derive_callback_keys(keys, callback)
            headers = sign_delivery(signing_keys, str(row["id"]), runtime.clock.epoch_ms() // 1000, body)
            status = await self._send(
                callback.url,
                body,
                headers={**headers, "content-type": CLOUDEVENTS_MEDIA_TYPE},
                seconds=runtime.settings.webhooks.seconds,
            )
        except Problem as problem:
            return problem.message[:400], False
        if 200 <= status < 300:
            return None, True
        return f"the receiver answered {status}", status == _HTTP_GONE

    async def _build_event(self, row: asyncpg.Record, call: asyncpg.Record, callback: Callback) -> bytes:
        """Build a CloudEvent with public facts about the call, and a link to the rest."""
        call_id, base = str(row["call_id"]), self._runtime.settings.identity.public_url or ""
        data: dict[str, Any] = {
            "call_id": call_id,
            "state": row["state"],
            "tool": {"name": call["tool"], "version": call["version"]},
            "session": call["session"],
            "error_slug": call["error"],
            "created_at": call["created_at"].isoformat(),
            "ended_at": row["created_at"].isoformat(),
            "trace_id": call["trace"],
            "links": {"self": f"{base}/v1/calls/{call_id}"},
        }
        event = {
            "specversion": "1.0",
            "id": str(row["id"]),
            "source": f"{base}/v1/calls/{call_id}",
            "type": EVENT_BY_STATE[State(row["state"])],
            "subject": call_id,
            "time": row["created_at"].isoformat(),
            "datacontenttype": "application/json",
            "data": data,
        }
        if (
            callback.include_result
            and is_trusted_host(self._runtime.settings.webhooks, callback)
            and call["ciphertext"] is not None
        ):
            with_result = orjson.dumps({**event, "data": {**data, "outcome": await self._load_outcome(row, call)}})
            if len(with_result) <= _MAX_BYTES:
                return with_result
            data["outcome_omitted"] = "the outcome is too large to send; read it from links.self"
        return orjson.dumps(event)

    async def _load_outcome(self, row: asyncpg.Record, call: asyncpg.Record) -> dict[str, Any]:
        """Load the call's envelope, redacted."""
        runtime, tenant, call_id = self._runtime, row["tenant"], str(row["call_id"])
        keys = await runtime.keys.get(tenant)
        envelope: dict[str, Any] = orjson.loads(keys.unseal(call_id, "outcome", call["ciphertext"]))
        if "result" not in envelope:
            return envelope
        # Redact by the version that ran, whatever its state is now.
        version = (
            (await runtime.authority.load_tenant(tenant)).tools.get_entry(call["tool"]).by_version.get(call["version"])
        )
        if version is None or version.digest != call["tool_digest"] or call["input"] is None:
            # Neither what the contract marks nor what the caller sent is known.
            return await asyncio.to_thread(_redact_envelope, None, None, envelope)
        input_data = keys.unseal(call_id, "input", call["input"])
        return await asyncio.to_thread(_redact_quotes, version.tool, input_data, envelope)


def _redact_quotes(tool: CompiledTool, input_data: bytes, envelope: dict[str, Any]) -> dict[str, Any]:
    """Redact the envelope of a call whose tool may have quoted sensitive values of its arguments anywhere."""
    output_plan = get_redaction_plan(tool, "output")
    arguments = StoredInput(input_data).call_input
    redactor = FreeTextRedactor(get_redaction_plan(tool, "input"), output_plan, arguments)
    return _redact_envelope(output_plan, redactor, envelope)


def _redact_envelope(
    plan: RedactionPlan | None, redactor: FreeTextRedactor | None, envelope: dict[str, Any]
) -> dict[str, Any]:
    """Redact the result and the texts that describe it, as a whole without the plan of the version that ran."""
    descriptions = {name: envelope[name] for name in _DESCRIPTIONS if isinstance(envelope.get(name), str)}
    if plan is None or redactor is None:
        return {**envelope, **dict.fromkeys(descriptions, REDACTION_MARK), "result": REDACTION_MARK}
    texts = {name: redact_text(redactor.hide_values(text)) for name, text in descriptions.items()}
    # The plan goes by names, so they are hidden after it.
    visible_result, _ = plan.apply(redactor.hide_values_in(envelope["result"]))
    return {**envelope, **texts, "result": redactor.hide_names_in(visible_result)}
