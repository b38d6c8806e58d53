"""Notify groups of pending approval requests: turn notices into notifications, and send them until they are delivered.

Every worker runs one; they share the work by skipping locked rows. A few notices are sent one by one, many as one
digest, to avoid alert fatigue. A notification is postponed before it is sent, so if the process dies it is sent again:
at least once, under the same id. `messages.py` has the texts, `receivers.py` the addresses.
"""

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import asyncpg
import structlog

from deputize.core.caller import parse_nearest_agent
from deputize.core.errors import Problem
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.core.settings import Settings
from deputize.core.settings.events import APPROVALS_KEY
from deputize.core.settings.urls import APPROVALS_PAGE_PATH, build_approval_url, get_base_url
from deputize.lifecycle.callbacks import CLOUDEVENTS_MEDIA_TYPE, SendWebhook, compute_delivery_backoff, sign_delivery
from deputize.lifecycle.runtime import Runtime
from deputize.operations.approvals.notifications.messages import (
    ApprovalNotification,
    PendingApproval,
    build_digest,
    build_disagreement_notice,
    build_notice,
    build_test_notice,
)
from deputize.operations.approvals.notifications.receivers import Receiver, Receivers
from deputize.store.keys import KeySet
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

_SQL = load_statements("approval_time")
_TESTS_SQL = load_statements("contract_tests")
_SOURCES_SQL = load_statements("consistency")
# The name of the tenant's key that webhooks to approvers are signed with.
DIGEST_WINDOW_SECONDS: Final = 60.0
_BATCH_SIZE: Final = 20
_MAX_GROUPS: Final = 500
_MAX_DROPPED_NOTICES: Final = 10_000
_MAX_COUNTED_CALLS: Final = 1000
_CLEANUP_INTERVAL_SECONDS: Final = 3600.0
log = structlog.get_logger(__name__)


class ApprovalNotifier(PeriodicTask):
    """Sends notifications about approval requests to the receivers of each group."""

    task_name = "approval notifications"
    tolerated_errors = CONNECTION_ERRORS

    def __init__(self, runtime: Runtime, send: SendWebhook) -> None:
        super().__init__()
        self._runtime = runtime
        self._send_webhook = send
        self._receivers = Receivers(runtime.settings)
        self._cleanup_due = 0.0

    @property
    def interval_seconds(self) -> float:
        return self._runtime.settings.timing.sweep_seconds

    async def run_step(self) -> float:
        """Write and send what is due; go on at once after a full batch."""
        await self.write_notifications()
        await self.write_test_notifications()
        await self.write_disagreement_notifications()
        sent_count = await self.send_notifications()
        await self._delete_old_mailboxes()
        return self.interval_seconds if sent_count < _BATCH_SIZE else 0.0

    def report_error(self, error: Exception) -> None:
        log.warning("notifications_failed", reason=repr(error))

    async def write_notifications(self) -> int:
        """Turn due notices into notifications; return how many groups had some."""
        async with self._runtime.store.write_transaction() as connection:
            groups = await connection.fetch(_SQL["list_groups_to_notify"], _MAX_GROUPS)
        for row in groups:
            await self._write_for_group(row["tenant"], row["grp"])
        return len(groups)

    async def _write_for_group(self, tenant: str, group: str) -> None:
        receivers = self._receivers.find_receivers(tenant, group)
        if not receivers:
            async with self._runtime.store.write_transaction() as connection:
                await connection.execute(_SQL["delete_notices"], tenant, group, _MAX_DROPPED_NOTICES)
            return
        try:
            keys = await self._load_keys(tenant)
        except Problem as problem:
            log.warning("notices_wait", tenant=tenant, reason=problem.spec.slug)
            return
        digest_threshold = self._runtime.settings.approvals.digest_over
        async with self._runtime.store.write_transaction() as connection:
            fingerprints = [each.compute_fingerprint(keys) for each in receivers]
            await connection.execute(
                _SQL["write_notifications"], tenant, group, fingerprints, digest_threshold, DIGEST_WINDOW_SECONDS
            )

    async def write_test_notifications(self) -> int:
        """Write the notifications about contract tests that turned red, to the tool's owners and the platform's group;
        return how many tests there were.
        """
        async with self._runtime.store.write_transaction() as connection:
            rows = await connection.fetch(_TESTS_SQL["list_red_contract_tests"], _BATCH_SIZE)
        for row in rows:
            try:
                take, insert = _TESTS_SQL["take_red_contract_test"], _TESTS_SQL["insert_test_notifications"]
                await self._write_to_owners(row["tenant"], row["id"], [row["tool"]], take, insert)
            except Problem as problem:
                log.warning("notices_wait", tenant=row["tenant"], reason=problem.spec.slug)
        return len(rows)

    async def write_disagreement_notifications(self) -> int:
        """Write the notifications about sources that disagree, to the owners of each and the platform's group; return
        how many disagreements there were.
        """
        async with self._runtime.store.write_transaction() as connection:
            rows = await connection.fetch(_SOURCES_SQL["list_due_disagreements"], _BATCH_SIZE)
        for row in rows:
            try:
                take, insert = _SOURCES_SQL["take_disagreement"], _SOURCES_SQL["insert_disagreement_notifications"]
                await self._write_to_owners(row["tenant"], row["id"], row["tools"], take, insert)
            except Problem as problem:
                log.warning("notices_wait", tenant=row["tenant"], reason=problem.spec.slug)
        return len(rows)

    async def _write_to_owners(self, tenant: str, row_id: UUID, tools: Sequence[str], take: str, insert: str) -> None:
        """Write notifications to the owners of tools, once: the statement `take` succeeds for one process only."""
        groups = (
            *(f"owners/{each.partition('.')[0]}" for each in tools),
            self._runtime.settings.tools.tests.notify_group,
        )
        receivers_by_group = {group: self._receivers.find_receivers(tenant, group) for group in groups}
        keys = await self._load_keys(tenant)
        async with self._runtime.store.write_transaction() as connection:
            if not await connection.fetchval(take, tenant, row_id):
                return
            for group, receivers in receivers_by_group.items():
                fingerprints = [each.compute_fingerprint(keys) for each in receivers]
                await connection.execute(insert, tenant, group, row_id, fingerprints)

    async def send_notifications(self) -> int:
        """Send one batch of due notifications; return how many there were."""
        async with self._runtime.store.write_transaction() as connection:
            due = await connection.fetch(
                _SQL["take_due_notifications"], _BATCH_SIZE, self._runtime.settings.webhooks.seconds + 30
            )
        await asyncio.gather(*(self._deliver(row) for row in due))
        return len(due)

    async def _deliver(self, row: asyncpg.Record) -> None:
        settings, tenant, notification_id = self._runtime.settings.webhooks, row["tenant"], row["id"]
        try:
            problem = await self._notify_receiver(row)
            async with self._runtime.store.write_transaction() as connection:
                if problem is None:
                    await connection.execute(_SQL["delete_notification"], tenant, notification_id)
                elif row["tries"] >= settings.attempts:
                    await connection.execute(_SQL["delete_notification"], tenant, notification_id)
                    self._runtime.metrics.record_notification("given_up")
                    log.warning("letter_given_up", letter_id=str(notification_id), group=row["grp"], reason=problem)
                else:
                    pause = compute_delivery_backoff(settings.retry_seconds, row["tries"])
                    await connection.execute(_SQL["postpone_notification"], tenant, notification_id, pause, problem)
                    self._runtime.metrics.record_notification("failed")
        except CONNECTION_ERRORS as error:
            # It was postponed when it was taken, so a worker sends it again later.
            log.warning("letter_lost", letter_id=str(notification_id), reason=type(error).__name__)

    async def _notify_receiver(self, row: asyncpg.Record) -> str | None:
        """Return why delivery failed; None if it succeeded or there is nothing left to notify about."""
        try:
            keys = await self._load_keys(row["tenant"])
            notification = await self._build_notification(row)
            if notification is None:
                return None
            receivers = self._receivers.find_receivers(row["tenant"], row["grp"])
            receiver = next((each for each in receivers if each.compute_fingerprint(keys) == row["receiver"]), None)
            if receiver is None:
                # Another process may know the receiver: new settings reach one process after the other.
                return "the receiver is not in the settings of this process"
            problem = await self._send_to_receiver(receiver, notification, row, keys)
        except Problem as error:
            return error.message[:400]
        if problem is None:
            self._runtime.metrics.record_notification("sent")
        return problem

    async def _send_to_receiver(
        self, receiver: Receiver, notification: ApprovalNotification, row: asyncpg.Record, keys: KeySet
    ) -> str | None:
        if not receiver.is_webhook:
            apprise_sender = self._receivers.apprise_sender
            assert apprise_sender is not None  # exists whenever a receiver is not a webhook
            return await apprise_sender.send(receiver, notification.title, notification.text)
        runtime, notification_id = self._runtime, str(row["id"])
        source = f"{runtime.settings.identity.public_url or ''}/v1/approvals"
        body = notification.to_cloud_event(notification_id, source, row["created_at"])
        signing_keys = keys.derive_webhook_keys(APPROVALS_KEY)
        headers = sign_delivery(signing_keys, notification_id, runtime.clock.epoch_ms() // 1000, body)
        status = await self._send_webhook(
            receiver.url.get_secret_value(), body, headers={**headers, "content-type": CLOUDEVENTS_MEDIA_TYPE},
            seconds=runtime.settings.webhooks.seconds,
        )  # fmt: skip
        return None if 200 <= status < 300 else f"the receiver answered {status}"

    async def _build_notification(self, row: asyncpg.Record) -> ApprovalNotification | None:
        """Build the notification from the current state; None if the request was decided meanwhile."""
        settings, tenant, group, approval_id = self._runtime.settings, row["tenant"], row["grp"], row["approval_id"]
        if row["kind"] == "contract-test":
            return await self._build_test_notification(tenant, group, approval_id)
        if row["kind"] == "disagreement":
            return await self._build_disagreement_notification(tenant, group, approval_id)
        async with self._runtime.store.read_transaction(tenant) as connection:
            if approval_id is None:
                tool_rows = await connection.fetch(
                    _SQL["summarize_pending_approvals"], tenant, group, _MAX_COUNTED_CALLS
                )
            else:
                request_row = await connection.fetchrow(_SQL["load_notification_content"], tenant, approval_id)
        if approval_id is None:
            tools = [(each["tool"], each["calls"]) for each in tool_rows]
            has_more = sum(calls for _, calls in tools) >= _MAX_COUNTED_CALLS
            first_deadline = min((each["first_ends"] for each in tool_rows), default=None)
            return (
                None
                if first_deadline is None
                else build_digest(tenant, group, tools, has_more, first_deadline, _build_list_url(settings))
            )
        if request_row is None or (request_row["state"] != "open" and row["kind"] != "broken-glass"):
            return None
        approval = PendingApproval(
            approval_id=str(approval_id),
            tool=request_row["tool"],
            user=request_row["caller_user"] or "",
            agent=parse_nearest_agent(request_row["caller_agent"] or "") or None,
            expires_at=request_row["expires_at"],
        )
        return build_notice(row["kind"], tenant, group, approval, build_approval_url(settings, str(approval_id)))

    async def _build_test_notification(self, tenant: str, group: str, test_id: UUID) -> ApprovalNotification | None:
        async with self._runtime.store.read_transaction(tenant) as connection:
            row = await connection.fetchrow(_TESTS_SQL["load_contract_test"], tenant, test_id)
        if row is None:
            return None
        return build_test_notice(
            tenant, group, str(test_id), row["tool"], row["version"], row["failures"], row["cases"]
        )

    async def _build_disagreement_notification(
        self, tenant: str, group: str, disagreement_id: UUID
    ) -> ApprovalNotification | None:
        async with self._runtime.store.read_transaction(tenant) as connection:
            row = await connection.fetchrow(_SOURCES_SQL["load_disagreement"], tenant, disagreement_id)
        if row is None:
            return None
        call_ids = [str(each) for each in row["call_ids"]]
        return build_disagreement_notice(tenant, group, str(disagreement_id), row["rule"], row["tools"], call_ids)

    async def _load_keys(self, tenant: str) -> KeySet:
        return await self._runtime.keys.get(tenant)

    async def _delete_old_mailboxes(self) -> None:
        if self._runtime.clock.monotonic() >= self._cleanup_due:
            self._cleanup_due = self._runtime.clock.monotonic() + _CLEANUP_INTERVAL_SECONDS
            async with self._runtime.store.write_transaction() as connection:
                await connection.execute(_SQL["delete_old_notification_windows"])


def _build_list_url(settings: Settings) -> str | None:
    """Return the URL of the console's list of pending approval requests."""
    base_url = get_base_url(settings)
    return None if base_url is None else base_url + APPROVALS_PAGE_PATH
