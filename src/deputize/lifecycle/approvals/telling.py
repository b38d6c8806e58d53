"""Tells groups of what waits for them: notices become letters to their receivers, and letters are sent until heard.

Every worker runs one; they share the work by skipping what another holds. A few notices go out one by one, many as one
digest, so that nobody learns to look away. A letter is put off before it is sent, so one whose process dies is sent
again: at least once, under the same id. Beside it: `letters.py` has the words, `receivers.py` the addresses.
"""

import asyncio
import contextlib
from typing import Final

import asyncpg
import structlog

from deputize.core.caller import nearest_of
from deputize.core.errors import Problem
from deputize.core.settings import Settings
from deputize.lifecycle.approvals.letters import About, Letter, about_many, about_one
from deputize.lifecycle.approvals.receivers import Receiver, Receivers
from deputize.lifecycle.approvals.shown import console_link
from deputize.lifecycle.deliveries import MEDIA, Send, backoff
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.webhooks import signed
from deputize.store.keys import KeySet
from deputize.store.pool import LOST
from deputize.store.queries import load

_SQL = load("approval_time")
# The name of the tenant's key that webhooks to approvers are signed with.
KEY_NAME: Final = "approvals"
WINDOW_SECONDS: Final = 60.0
_AT_ONCE: Final = 20
_MOST_GROUPS: Final = 500
_MOST_DROPPED: Final = 10_000
_MOST_COUNTED: Final = 1000
_FORGET_EVERY: Final = 3600.0
log = structlog.get_logger(__name__)


class Telling:
    def __init__(self, rooms: Rooms, send: Send) -> None:
        self._rooms = rooms
        self._send = send
        self._receivers = Receivers(rooms.settings)
        self._task: asyncio.Task[None] | None = None
        self._forget_due = 0.0

    async def start(self) -> None:
        self._task = asyncio.create_task(self._keep_telling(), name="telling")

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep_telling(self) -> None:
        while True:
            sent = 0
            try:
                await self.write()
                sent = await self.send()
                await self._forget()
            except LOST as error:
                log.warning("telling_failed", reason=repr(error))
            if sent < _AT_ONCE:
                await asyncio.sleep(self._rooms.settings.timing.sweep_seconds)

    async def write(self) -> int:
        """Notices that are due become letters; how many groups had some."""
        async with self._rooms.store.writing() as connection:
            groups = await connection.fetch(_SQL["waiting_groups"], _MOST_GROUPS)
        for row in groups:
            await self._write(row["tenant"], row["grp"])
        return len(groups)

    async def _write(self, tenant: str, group: str) -> None:
        receivers = self._receivers.of(tenant, group)
        if not receivers:
            async with self._rooms.store.writing() as connection:
                await connection.execute(_SQL["drop_notices"], tenant, group, _MOST_DROPPED)
            return
        try:
            keys = await self._keys(tenant)
        except Problem as problem:
            log.warning("notices_wait", tenant=tenant, reason=problem.face.slug)
            return
        most = self._rooms.settings.approvals.digest_over
        async with self._rooms.store.writing() as connection:
            marks = [each.mark(keys) for each in receivers]
            await connection.execute(_SQL["write_letters"], tenant, group, marks, most, WINDOW_SECONDS)

    async def send(self) -> int:
        """One round of the letters that are due; how many that was."""
        async with self._rooms.store.writing() as connection:
            due = await connection.fetch(_SQL["take_letters"], _AT_ONCE, self._rooms.settings.webhooks.seconds + 30)
        await asyncio.gather(*(self._deliver(row) for row in due))
        return len(due)

    async def _deliver(self, row: asyncpg.Record) -> None:
        settings, tenant, letter_id = self._rooms.settings.webhooks, row["tenant"], row["id"]
        try:
            problem = await self._told(row)
            async with self._rooms.store.writing() as connection:
                if problem is None:
                    await connection.execute(_SQL["end_letter"], tenant, letter_id)
                elif row["tries"] >= settings.attempts:
                    await connection.execute(_SQL["end_letter"], tenant, letter_id)
                    self._rooms.metrics.letter("given_up")
                    log.warning("letter_given_up", letter_id=str(letter_id), group=row["grp"], reason=problem)
                else:
                    pause = backoff(settings.retry_seconds, row["tries"])
                    await connection.execute(_SQL["send_later"], tenant, letter_id, pause, problem)
                    self._rooms.metrics.letter("failed")
        except LOST as error:
            # Still put off as it was taken; whoever is there by then sends it.
            log.warning("letter_lost", letter_id=str(letter_id), reason=type(error).__name__)

    async def _told(self, row: asyncpg.Record) -> str | None:
        """What kept the receiver from hearing it; nothing also where there is nothing to be told any more."""
        try:
            keys = await self._keys(row["tenant"])
            letter = await self._letter(row)
            if letter is None:
                return None
            receivers = self._receivers.of(row["tenant"], row["grp"])
            receiver = next((each for each in receivers if each.mark(keys) == row["receiver"]), None)
            if receiver is None:
                # Another process may know it: settings change in one after the other.
                return "the settings of this process do not name its receiver"
            problem = await self._sent(receiver, letter, row, keys)
        except Problem as refused:
            return refused.message[:400]
        if problem is None:
            self._rooms.metrics.letter("told")
        return problem

    async def _sent(self, receiver: Receiver, letter: Letter, row: asyncpg.Record, keys: KeySet) -> str | None:
        if not receiver.is_webhook:
            shouting = self._receivers.shouting
            assert shouting is not None  # made for whatever is no webhook
            return await shouting.send(receiver, letter.title, letter.text)
        rooms, letter_id = self._rooms, str(row["id"])
        source = f"{rooms.settings.identity.public_url or ''}/v1/approvals"
        body = letter.event(letter_id, source, row["created_at"])
        headers = signed(keys, KEY_NAME, letter_id, rooms.clock.epoch_ms() // 1000, body)
        status = await self._send(
            receiver.url.get_secret_value(), body, headers={**headers, "content-type": MEDIA},
            seconds=rooms.settings.webhooks.seconds,
        )  # fmt: skip
        return None if 200 <= status < 300 else f"the receiver answered {status}"

    async def _letter(self, row: asyncpg.Record) -> Letter | None:
        """As things are now: what was decided meanwhile is told to nobody."""
        settings, tenant, group, ticket = self._rooms.settings, row["tenant"], row["grp"], row["ticket"]
        async with self._rooms.store.reading(tenant) as connection:
            if ticket is None:
                waits = await connection.fetch(_SQL["what_waits"], tenant, group, _MOST_COUNTED)
            else:
                found = await connection.fetchrow(_SQL["what_to_tell"], tenant, ticket)
        if ticket is None:
            tools = [(each["tool"], each["calls"]) for each in waits]
            more = sum(calls for _, calls in tools) >= _MOST_COUNTED
            ends = min((each["first_ends"] for each in waits), default=None)
            return None if ends is None else about_many(tenant, group, tools, more, ends, _list_link(settings))
        if found is None or (found["state"] != "open" and row["kind"] != "broken-glass"):
            return None
        about = About(
            ticket=str(ticket),
            tool=found["tool"],
            user=found["caller_user"] or "",
            agent=nearest_of(found["caller_agent"] or "") or None,
            expires_at=found["expires_at"],
        )
        return about_one(row["kind"], tenant, group, about, console_link(settings, str(ticket)))

    async def _keys(self, tenant: str) -> KeySet:
        return self._rooms.keys.ready(tenant) or await self._rooms.keys.load(self._rooms.store, tenant)

    async def _forget(self) -> None:
        if self._rooms.clock.monotonic() >= self._forget_due:
            self._forget_due = self._rooms.clock.monotonic() + _FORGET_EVERY
            async with self._rooms.store.writing() as connection:
                await connection.execute(_SQL["forget_mailboxes"])


def _list_link(settings: Settings) -> str | None:
    """Where everything is that waits for whoever looks."""
    link = console_link(settings, "")
    return None if link is None else link.rstrip("/")
