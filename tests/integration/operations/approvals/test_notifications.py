"""Groups hear of what waits for them: a link and a few facts, until they heard it, and in one message when many do."""

import asyncio
import base64
import contextlib
import hmac
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest
import pytest_asyncio
from prometheus_client import generate_latest

from deputize.app import open_gateway, open_worker
from deputize.core.settings import ApprovalSettings, NotificationTarget, Settings, WebhookSettings
from deputize.core.settings.events import APPROVALS_KEY
from deputize.execute.egress import Egress
from deputize.operations.approvals.escalation import ApprovalEscalator
from deputize.operations.approvals.notifications.notifier import ApprovalNotifier
from tests.support.approval_lab import RULES, ApprovalLab
from tests.support.gateway_lab import GatewayLab, lab_settings, wait_until
from tests.support.scripted_tools import TOOLS
from tests.support.webhook_receiver import ReceivedRequest, WebhookReceiver, open_webhook_receiver

pytestmark = pytest.mark.requirement("GOV-3")

CONSOLE = "https://deputize.example"
TOKEN = "opens-the-channel"
_NEW_WINDOW = "update deputize.notification_windows set window_ends = now()"
_DUE = "update deputize.notifications set due_at = now()"


def notification_settings(dsn: str, folder: Path, *notify: NotificationTarget, **webhooks: Any) -> Settings:
    hooks = {"hosts": ("127.0.0.1",), "retry_seconds": 0.05, "attempts": 3, "seconds": 60, **webhooks}
    approvals = ApprovalSettings(groups=("approvers",), console_url=CONSOLE, notify=notify)
    return lab_settings(dsn, folder).model_copy(update={"webhooks": WebhookSettings(**hooks), "approvals": approvals})


def make_notify(group: str, url: str, tenants: str = "*") -> NotificationTarget:
    return NotificationTarget.model_validate({"group": group, "url": url, "tenants": tenants})


def apprise_url(receiver: WebhookReceiver) -> str:
    """Where apprise finds it."""
    return receiver.url.replace("http://", f"json://bot:{TOKEN}@")


@contextlib.asynccontextmanager
async def open_notifier(settings: Settings, dsn: str) -> AsyncIterator[tuple[ApprovalLab, ApprovalNotifier]]:
    """A gateway without a worker: tests tell when they mean to."""
    db, egress = await asyncpg.connect(dsn), Egress(allow_hosts=frozenset(settings.webhooks.hosts))
    async with open_gateway(settings, tools=TOOLS, development=True) as gateway:
        approval_lab = ApprovalLab(lab=GatewayLab(gateway=gateway, folder=settings.folder, dsn=dsn, db=db))
        await approval_lab.put_policies(RULES)
        yield approval_lab, ApprovalNotifier(approval_lab.lab.runtime, egress.send)
    await egress.aclose()
    await db.close()


@pytest_asyncio.fixture(loop_scope="session")
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with open_webhook_receiver() as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def other_receiver() -> AsyncIterator[WebhookReceiver]:
    async with open_webhook_receiver() as opened:
        yield opened


async def send_notifications(approval_lab: ApprovalLab, notifier: ApprovalNotifier) -> None:
    """Everything that can be told now."""
    await notifier.write_notifications()
    await approval_lab.lab.db.execute(_DUE)
    await notifier.send_notifications()


async def count_undelivered(approval_lab: ApprovalLab) -> tuple[int, int]:
    db = approval_lab.lab.db
    counts = [await db.fetchval(f"select count(*) from deputize.{table}") for table in ("notices", "notifications")]
    return counts[0], counts[1]


def read_counter(approval_lab: ApprovalLab, outcome: str) -> float:
    name = f'deputize_approval_notifications_total{{outcome="{outcome}"}}'
    lines = generate_latest(approval_lab.lab.runtime.metrics.registry).decode().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(name)), 0.0)


async def _is_signature_valid(approval_lab: ApprovalLab, request: ReceivedRequest) -> bool:
    """As any receiver of Standard Webhooks would."""
    secret = (await approval_lab.lab.gateway.webhooks.show_key(await approval_lab.lab.make_admin(), APPROVALS_KEY))[
        "secret"
    ]
    assert secret is not None
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    mark = hmac.digest(base64.b64decode(secret.removeprefix("whsec_")), signed, "sha256")
    return f"v1,{base64.b64encode(mark).decode()}" in request.headers["webhook-signature"].split(" ")


async def test_a_webhook_notification_is_signed_and_has_a_link_but_no_arguments(
    fresh_database: str, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    settings = notification_settings(fresh_database, tmp_path, make_notify("approvers", receiver.url))
    async with open_notifier(settings, fresh_database) as (approval_lab, told):
        _, ticket = await approval_lab.request_approval("put", "hush-hush")
        await send_notifications(approval_lab, told)
        heard = await receiver.wait_for_request(1)
        event = orjson.loads(heard.body)
        assert (event["type"], event["subject"], event["id"]) == (
            "tool.permission.requested", ticket, heard.headers["webhook-id"],
        )  # fmt: skip
        data = event["data"]
        assert (data["kind"], data["group"], data["tool"], data["for_user"], data["agent"], data["url"]) == (
            "asked", "approvers", "lab.put", "ana", None, f"{CONSOLE}/console/approvals/{ticket}",
        )  # fmt: skip
        assert b"hush" not in heard.body
        assert await _is_signature_valid(approval_lab, heard)
        assert await count_undelivered(approval_lab) == (0, 0)
        assert read_counter(approval_lab, "sent") == 1
        await send_notifications(approval_lab, told)
        assert len(receiver.requests) == 1


async def test_a_service_is_notified_through_apprise(
    fresh_database: str, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    receiver.statuses = [200]
    async with open_notifier(
        notification_settings(fresh_database, tmp_path, make_notify("approvers", apprise_url(receiver))), fresh_database
    ) as opened:
        approval_lab, told = opened
        _, ticket = await approval_lab.request_approval("put", "hush-hush")
        await send_notifications(approval_lab, told)
        message = orjson.loads(receiver.requests[0].body)
        assert message["title"] == "lab.put needs your approval"
        lines = message["message"].splitlines()
        assert (lines[0], lines[2]) == ("For ana, in dev.", f"{CONSOLE}/console/approvals/{ticket}")
        assert lines[1].startswith("Group approvers can decide until 20")
        assert b"hush" not in receiver.requests[0].body
        assert await count_undelivered(approval_lab) == (0, 0)


async def test_only_failed_receivers_are_retried_under_the_same_id(
    fresh_database: str, tmp_path: Path, receiver: WebhookReceiver, other_receiver: WebhookReceiver
) -> None:
    other_receiver.statuses = [503, 500]
    settings = notification_settings(
        fresh_database, tmp_path, make_notify("approvers", receiver.url), make_notify("approvers", other_receiver.url)
    )
    async with open_notifier(settings, fresh_database) as (approval_lab, told):
        await approval_lab.request_approval("put", "again")
        for _ in range(3):
            await send_notifications(approval_lab, told)
        assert (len(receiver.requests), len(other_receiver.requests)) == (1, 3)
        assert len({heard.headers["webhook-id"] for heard in other_receiver.requests}) == 1
        assert await count_undelivered(approval_lab) == (0, 0)
        assert (read_counter(approval_lab, "failed"), read_counter(approval_lab, "sent")) == (2, 2)


async def test_an_undeliverable_notification_is_given_up_and_counted_without_leaking_its_address(
    fresh_database: str, tmp_path: Path, receiver: WebhookReceiver, capfd: pytest.CaptureFixture[str]
) -> None:
    receiver.statuses = [500] * 10
    hook = f"{receiver.url}?key={TOKEN}"
    settings = notification_settings(
        fresh_database, tmp_path, make_notify("approvers", apprise_url(receiver)), make_notify("approvers", hook)
    )
    async with open_notifier(settings, fresh_database) as (approval_lab, told):
        await approval_lab.request_approval("put", "dead")
        for _ in range(4):
            await send_notifications(approval_lab, told)
            letters = await approval_lab.lab.db.fetch("select l.*, l::text as whole from deputize.notifications l")
            assert TOKEN not in str(letters)
        assert len(receiver.requests) == 6
        assert await count_undelivered(approval_lab) == (0, 0)
        assert (read_counter(approval_lab, "given_up"), read_counter(approval_lab, "sent")) == (2, 0)
        assert TOKEN not in repr(approval_lab.lab.runtime.settings)
    said = capfd.readouterr()
    assert "letter_given_up" in said.out + said.err
    assert TOKEN not in said.out + said.err


async def test_a_service_that_never_answers_holds_up_nobody(
    fresh_database: str, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    url = f"json://127.0.0.1:{silent.sockets[0].getsockname()[1]}/"
    settings = notification_settings(
        fresh_database, tmp_path, make_notify("approvers", url), make_notify("approvers", receiver.url), seconds=4
    )
    async with open_notifier(settings, fresh_database) as (approval_lab, told):
        await approval_lab.request_approval("put", "silent")
        async with asyncio.timeout(90):
            await send_notifications(approval_lab, told)
        assert len(receiver.requests) == 1
        assert (
            await approval_lab.lab.db.fetchval("select problem from deputize.notifications")
            == "the service did not answer in time"
        )
    silent.close()


async def test_a_few_go_out_one_by_one_and_many_as_one(
    fresh_database: str, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    settings = notification_settings(fresh_database, tmp_path, make_notify("approvers", receiver.url))
    async with open_notifier(settings, fresh_database) as (approval_lab, told):
        for number in range(3):
            await approval_lab.request_approval("put", f"few-{number}")
        await send_notifications(approval_lab, told)
        assert [_notification_kind(heard) for heard in receiver.requests] == ["asked"] * 3
        for number in range(4):
            await approval_lab.request_approval("note", f"more-{number}")
        await send_notifications(approval_lab, told)
        # Seven in one minute are too many to be told of each.
        assert [_notification_kind(heard) for heard in receiver.requests[3:]] == ["digest"]
        digest = orjson.loads(receiver.requests[3].body)
        assert (digest["subject"], digest["data"]["count"]) == ("approvers", 7)
        assert digest["data"]["tools"] == [{"tool": "lab.note", "calls": 4}, {"tool": "lab.put", "calls": 3}]
        assert digest["data"]["url"] == f"{CONSOLE}/console/approvals"
        # Whatever comes now waits for the next window.
        for number in range(6):
            await approval_lab.request_approval("put", f"still-{number}")
            await send_notifications(approval_lab, told)
        assert len(receiver.requests) == 4
        await approval_lab.lab.db.execute(_NEW_WINDOW)
        await send_notifications(approval_lab, told)
        assert [_notification_kind(heard) for heard in receiver.requests[4:]] == ["digest"]
        await approval_lab.lab.db.execute(_NEW_WINDOW)
        await approval_lab.request_approval("put", "calm")
        await send_notifications(approval_lab, told)
        assert [_notification_kind(heard) for heard in receiver.requests[5:]] == ["asked"]
        assert await count_undelivered(approval_lab) == (0, 0)


def _notification_kind(request: ReceivedRequest) -> str:
    kind: str = orjson.loads(request.body)["data"]["kind"]
    return kind


async def test_decided_requests_are_not_notified_unless_the_glass_was_broken(
    fresh_database: str, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    settings = notification_settings(fresh_database, tmp_path, make_notify("approvers", receiver.url))
    async with open_notifier(settings, fresh_database) as (approval_lab, told):
        _, closed = await approval_lab.request_approval("put", "closed")
        await approval_lab.approvals.deny(await approval_lab.make_approver("bo"), closed, reason="no")
        await send_notifications(approval_lab, told)
        assert receiver.requests == []
        # A full mailbox does not keep it.
        _, broken = await approval_lab.request_approval("put", "broken")
        await approval_lab.lab.db.execute(
            "update deputize.notification_windows set sent_count = 100, window_ends = now() + interval '1 day'"
        )
        await approval_lab.lab.db.execute(
            "insert into deputize.notices (tenant, approval_id, grp, kind)"
            " values ('dev', $1, 'approvers', 'broken-glass')",
            broken,
        )
        await approval_lab.lab.db.execute("update deputize.approvals set state = 'approved' where id = $1", broken)
        await send_notifications(approval_lab, told)
        assert [_notification_kind(heard) for heard in receiver.requests] == ["broken-glass"]
        assert orjson.loads(receiver.requests[0].body)["type"] == "tool.permission.decided"


async def test_later_levels_are_notified_when_escalation_reaches_them(
    fresh_database: str, tmp_path: Path, receiver: WebhookReceiver, other_receiver: WebhookReceiver
) -> None:
    settings = notification_settings(
        fresh_database, tmp_path, make_notify("keepers", receiver.url), make_notify("elders", other_receiver.url)
    )
    async with open_notifier(settings, fresh_database) as (approval_lab, told):
        _, ticket = await approval_lab.request_approval("erase", "turns")
        await send_notifications(approval_lab, told)
        assert (len(receiver.requests), len(other_receiver.requests)) == (1, 0)
        await approval_lab.lab.db.execute(
            "update deputize.approvals set opened_at = opened_at - interval '61 minutes', next_at = now()"
        )
        await ApprovalEscalator(approval_lab.lab.runtime).sweep()
        await send_notifications(approval_lab, told)
        assert [_notification_kind(heard) for heard in receiver.requests] == ["asked", "reminder"]
        assert [_notification_kind(heard) for heard in other_receiver.requests] == ["escalated"]
        assert orjson.loads(other_receiver.requests[0].body)["subject"] == ticket


async def test_a_group_nobody_named_an_address_for_leaves_nothing_behind(fresh_database: str, tmp_path: Path) -> None:
    async with open_notifier(notification_settings(fresh_database, tmp_path), fresh_database) as (approval_lab, told):
        await approval_lab.request_approval("put", "nobody")
        assert await count_undelivered(approval_lab) == (1, 0)
        await send_notifications(approval_lab, told)
        assert await count_undelivered(approval_lab) == (0, 0)


async def test_a_receiver_hears_of_its_own_tenants_only(
    fresh_database: str, tmp_path: Path, receiver: WebhookReceiver, other_receiver: WebhookReceiver
) -> None:
    settings = notification_settings(
        fresh_database,
        tmp_path,
        make_notify("approvers", receiver.url, "dev"),
        make_notify("approvers", other_receiver.url, "twin-*"),
    )
    async with open_notifier(settings, fresh_database) as (approval_lab, told):
        for number in range(7):
            await approval_lab.request_approval("put", f"mine-{number}")
        _, ticket = await approval_lab.request_approval("put", "same-id")
        db = approval_lab.lab.db
        await db.execute("insert into deputize.tenants (tenant) values ('twin-1')")
        # What belongs to another tenant, under the same ids.
        await db.execute(
            "insert into deputize.notices (tenant, approval_id, grp, kind) values ('twin-1', $1, 'approvers', 'asked')",
            ticket,
        )
        await told.write_notifications()
        mark = await db.fetchval("select receiver from deputize.notifications where tenant = 'dev'")
        await send_notifications(approval_lab, told)
        assert [orjson.loads(heard.body)["data"]["count"] for heard in receiver.requests] == [8]
        # The twin has no such ticket, so there is nothing to tell.
        assert other_receiver.requests == []
        # A letter in its name to somebody else's receiver finds none.
        await _copy_request(db, ticket)
        await db.execute(
            "insert into deputize.notifications (tenant, grp, receiver, kind)"
            " values ('twin-1', 'approvers', $1, 'digest')",
            mark,
        )
        await send_notifications(approval_lab, told)
        assert (len(receiver.requests), other_receiver.requests) == (1, [])
        problem = await db.fetchval("select problem from deputize.notifications")
        assert problem == "the receiver is not in the settings of this process"
        # In its own name it is told to its own, and of its own.
        await db.execute(
            "insert into deputize.notices (tenant, approval_id, grp, kind)"
            " select 'twin-1', gen_random_uuid(), 'approvers', 'asked' from generate_series(1, 9)"
        )
        await send_notifications(approval_lab, told)
        assert [orjson.loads(heard.body)["data"]["count"] for heard in other_receiver.requests] == [1]
        assert len(receiver.requests) == 1


async def _copy_request(db: asyncpg.Connection, ticket: str) -> None:
    await db.execute("insert into deputize.approval_groups values ('twin-1', 'approvers', $1)", ticket)
    await db.execute(
        "insert into deputize.approvals (tenant, id, call_id, binding, demands, presentation, chain, tool, group_key,"
        " levels, expires_at) select 'twin-1', id, call_id, binding, demands, presentation, chain, tool, group_key,"
        " levels, expires_at"
        " from deputize.approvals where tenant = 'dev' and id = $1",
        ticket,
    )


async def test_concurrent_notifiers_send_each_notification_once(
    fresh_database: str, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    settings = notification_settings(
        fresh_database, tmp_path, make_notify("approvers", receiver.url), make_notify("keepers", receiver.url)
    )
    async with open_notifier(settings, fresh_database) as (approval_lab, told):
        tickets = [(await approval_lab.request_approval("put", f"both-{number}"))[1] for number in range(5)]
        tickets += [(await approval_lab.request_approval("erase", f"both-{number}"))[1] for number in range(5)]
        egress = Egress(allow_hosts=frozenset({"127.0.0.1"}))
        second = ApprovalNotifier(approval_lab.lab.runtime, egress.send)
        async with asyncio.timeout(90):
            while await count_undelivered(approval_lab) != (0, 0):
                await asyncio.gather(
                    told.write_notifications(),
                    second.write_notifications(),
                    told.send_notifications(),
                    second.send_notifications(),
                )
        assert Counter(orjson.loads(heard.body)["subject"] for heard in receiver.requests) == Counter(tickets)
        assert await count_undelivered(approval_lab) == (0, 0)
        await egress.aclose()


async def test_a_notification_survives_the_death_of_its_sender(
    fresh_database: str, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    settings = notification_settings(fresh_database, tmp_path, make_notify("approvers", receiver.url))
    async with open_notifier(settings, fresh_database) as (approval_lab, told):
        await approval_lab.request_approval("put", "dies")
        await told.write_notifications()
        receiver.statuses = [204]

        async def die(*_: Any, **__: Any) -> int:
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await ApprovalNotifier(approval_lab.lab.runtime, die).send_notifications()
        assert await count_undelivered(approval_lab) == (0, 1)
        assert await told.send_notifications() == 0
        letter = await approval_lab.lab.db.fetchval("select id from deputize.notifications")
        await send_notifications(approval_lab, told)
        assert [heard.headers["webhook-id"] for heard in receiver.requests] == [str(letter)]


async def test_a_worker_sends_notifications_by_itself(
    fresh_database: str, tmp_path: Path, receiver: WebhookReceiver
) -> None:
    settings = notification_settings(fresh_database, tmp_path, make_notify("approvers", receiver.url))
    settings = settings.model_copy(update={"timing": settings.timing.model_copy(update={"sweep_seconds": 0.1})})
    async with open_notifier(settings, fresh_database) as (approval_lab, _), open_worker(approval_lab.lab.gateway):
        await approval_lab.request_approval("put", "by-itself")
        await receiver.wait_for_request(1)

        async def is_done() -> bool:
            return await count_undelivered(approval_lab) == (0, 0)

        await wait_until(is_done)
