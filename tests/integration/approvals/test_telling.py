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
from deputize.core.settings import Approvals, Notify, Settings, Webhooks
from deputize.execute.egress import Egress
from deputize.lifecycle.approvals.clockwork import Clockwork
from deputize.lifecycle.approvals.telling import KEY_NAME, Telling
from tests.integration.approvals.house import RULES, House
from tests.integration.lifecycle.lab import Lab, lab_settings, until
from tests.integration.lifecycle.tools import TOOLS
from tests.integration.runs.receiver import Heard, Receiver, receiving

pytestmark = pytest.mark.requirement("GOV-3")

CONSOLE = "https://deputize.example"
TOKEN = "opens-the-channel"
_NEW_WINDOW = "update deputize.mailboxes set window_ends = now()"
_DUE = "update deputize.letters set due_at = now()"


def notified(dsn: str, folder: Path, *notify: Notify, **webhooks: Any) -> Settings:
    hooks = {"hosts": ("127.0.0.1",), "retry_seconds": 0.05, "attempts": 3, "seconds": 2, **webhooks}
    approvals = Approvals(groups=("approvers",), console_url=CONSOLE, notify=notify)
    return lab_settings(dsn, folder).model_copy(update={"webhooks": Webhooks(**hooks), "approvals": approvals})


def to(group: str, url: str, tenants: str = "*") -> Notify:
    return Notify.model_validate({"group": group, "url": url, "tenants": tenants})


def shout(receiver: Receiver) -> str:
    """Where apprise finds it."""
    return receiver.url.replace("http://", f"json://bot:{TOKEN}@")


@contextlib.asynccontextmanager
async def telling(settings: Settings, dsn: str) -> AsyncIterator[tuple[House, Telling]]:
    """A gateway without a worker: tests tell when they mean to."""
    db, egress = await asyncpg.connect(dsn), Egress(allow_hosts=frozenset(settings.webhooks.hosts))
    async with open_gateway(settings, tools=TOOLS, development=True) as gateway:
        house = House(lab=Lab(gateway=gateway, folder=settings.folder, dsn=dsn, db=db))
        await house.put_rules(RULES)
        yield house, Telling(house.lab.rooms, egress.send)
    await egress.aclose()
    await db.close()


@pytest_asyncio.fixture(loop_scope="session")
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def other() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


async def tell(house: House, told: Telling) -> None:
    """Everything that can be told now."""
    await told.write()
    await house.lab.db.execute(_DUE)
    await told.send()


async def left(house: House) -> tuple[int, int]:
    db = house.lab.db
    counts = [await db.fetchval(f"select count(*) from deputize.{table}") for table in ("notices", "letters")]
    return counts[0], counts[1]


def counted(house: House, outcome: str) -> float:
    name = f'deputize_approval_letters_total{{outcome="{outcome}"}}'
    lines = generate_latest(house.lab.rooms.metrics.registry).decode().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(name)), 0.0)


async def _checks(house: House, heard: Heard) -> bool:
    """As any receiver of Standard Webhooks would."""
    secret = (await house.lab.gateway.webhooks.key(await house.lab.admin(), KEY_NAME))["secret"]
    signed = f"{heard.headers['webhook-id']}.{heard.headers['webhook-timestamp']}.".encode() + heard.body
    mark = hmac.digest(base64.b64decode(secret.removeprefix("whsec_")), signed, "sha256")
    return f"v1,{base64.b64encode(mark).decode()}" in heard.headers["webhook-signature"].split(" ")


async def test_a_webhook_is_told_signed_with_a_link_and_no_argument(
    fresh_database: str, tmp_path: Path, receiver: Receiver
) -> None:
    settings = notified(fresh_database, tmp_path, to("approvers", receiver.url))
    async with telling(settings, fresh_database) as (house, told):
        _, ticket = await house.asked("put", "hush-hush")
        await tell(house, told)
        heard = await receiver.until(1)
        event = orjson.loads(heard.body)
        assert (event["type"], event["subject"], event["id"]) == (
            "tool.permission.requested", ticket, heard.headers["webhook-id"],
        )  # fmt: skip
        data = event["data"]
        assert (data["kind"], data["group"], data["tool"], data["for_user"], data["agent"], data["url"]) == (
            "asked", "approvers", "lab.put", "ana", None, f"{CONSOLE}/console/tickets/{ticket}",
        )  # fmt: skip
        assert b"hush" not in heard.body
        assert await _checks(house, heard)
        assert await left(house) == (0, 0)
        assert counted(house, "told") == 1
        await tell(house, told)
        assert len(receiver.heard) == 1


async def test_a_service_is_told_through_apprise(fresh_database: str, tmp_path: Path, receiver: Receiver) -> None:
    receiver.statuses = [200]
    async with telling(notified(fresh_database, tmp_path, to("approvers", shout(receiver))), fresh_database) as opened:
        house, told = opened
        _, ticket = await house.asked("put", "hush-hush")
        await tell(house, told)
        message = orjson.loads(receiver.heard[0].body)
        assert message["title"] == "lab.put waits for a yes or a no"
        lines = message["message"].splitlines()
        assert (lines[0], lines[2]) == ("For ana, in dev.", f"{CONSOLE}/console/tickets/{ticket}")
        assert lines[1].startswith("Asked of approvers until 20")
        assert b"hush" not in receiver.heard[0].body
        assert await left(house) == (0, 0)


async def test_only_who_did_not_hear_it_is_told_again_under_the_same_id(
    fresh_database: str, tmp_path: Path, receiver: Receiver, other: Receiver
) -> None:
    other.statuses = [503, 500]
    settings = notified(fresh_database, tmp_path, to("approvers", receiver.url), to("approvers", other.url))
    async with telling(settings, fresh_database) as (house, told):
        await house.asked("put", "again")
        for _ in range(3):
            await tell(house, told)
        assert (len(receiver.heard), len(other.heard)) == (1, 3)
        assert len({heard.headers["webhook-id"] for heard in other.heard}) == 1
        assert await left(house) == (0, 0)
        assert (counted(house, "failed"), counted(house, "told")) == (2, 2)


async def test_what_nobody_hears_is_given_up_counted_and_no_address_is_told_anywhere(
    fresh_database: str, tmp_path: Path, receiver: Receiver, capfd: pytest.CaptureFixture[str]
) -> None:
    receiver.statuses = [500] * 10
    hook = f"{receiver.url}?key={TOKEN}"
    settings = notified(fresh_database, tmp_path, to("approvers", shout(receiver)), to("approvers", hook))
    async with telling(settings, fresh_database) as (house, told):
        await house.asked("put", "dead")
        for _ in range(4):
            await tell(house, told)
            letters = await house.lab.db.fetch("select l.*, l::text as whole from deputize.letters l")
            assert TOKEN not in str(letters)
        assert len(receiver.heard) == 6
        assert await left(house) == (0, 0)
        assert (counted(house, "given_up"), counted(house, "told")) == (2, 0)
        assert TOKEN not in repr(house.lab.rooms.settings)
    said = capfd.readouterr()
    assert "letter_given_up" in said.out + said.err
    assert TOKEN not in said.out + said.err


async def test_a_service_that_never_answers_holds_up_nobody(
    fresh_database: str, tmp_path: Path, receiver: Receiver
) -> None:
    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(stall, "127.0.0.1", 0)
    url = f"json://127.0.0.1:{silent.sockets[0].getsockname()[1]}/"
    settings = notified(fresh_database, tmp_path, to("approvers", url), to("approvers", receiver.url), seconds=0.5)
    async with telling(settings, fresh_database) as (house, told):
        await house.asked("put", "silent")
        async with asyncio.timeout(90):
            await tell(house, told)
        assert len(receiver.heard) == 1
        assert (
            await house.lab.db.fetchval("select problem from deputize.letters") == "the service did not answer in time"
        )
    silent.close()


async def test_a_few_go_out_one_by_one_and_many_as_one(fresh_database: str, tmp_path: Path, receiver: Receiver) -> None:
    settings = notified(fresh_database, tmp_path, to("approvers", receiver.url))
    async with telling(settings, fresh_database) as (house, told):
        for number in range(3):
            await house.asked("put", f"few-{number}")
        await tell(house, told)
        assert [_kind(heard) for heard in receiver.heard] == ["asked"] * 3
        for number in range(4):
            await house.asked("note", f"more-{number}")
        await tell(house, told)
        # Seven in one minute are too many to be told of each.
        assert [_kind(heard) for heard in receiver.heard[3:]] == ["digest"]
        digest = orjson.loads(receiver.heard[3].body)
        assert (digest["subject"], digest["data"]["count"]) == ("approvers", 7)
        assert digest["data"]["tools"] == [{"tool": "lab.note", "calls": 4}, {"tool": "lab.put", "calls": 3}]
        assert digest["data"]["url"] == f"{CONSOLE}/console/tickets"
        # Whatever comes now waits for the next window.
        for number in range(6):
            await house.asked("put", f"still-{number}")
            await tell(house, told)
        assert len(receiver.heard) == 4
        await house.lab.db.execute(_NEW_WINDOW)
        await tell(house, told)
        assert [_kind(heard) for heard in receiver.heard[4:]] == ["digest"]
        await house.lab.db.execute(_NEW_WINDOW)
        await house.asked("put", "calm")
        await tell(house, told)
        assert [_kind(heard) for heard in receiver.heard[5:]] == ["asked"]
        assert await left(house) == (0, 0)


def _kind(heard: Heard) -> str:
    kind: str = orjson.loads(heard.body)["data"]["kind"]
    return kind


async def test_what_was_decided_meanwhile_is_told_to_nobody_unless_glass_was_broken(
    fresh_database: str, tmp_path: Path, receiver: Receiver
) -> None:
    settings = notified(fresh_database, tmp_path, to("approvers", receiver.url))
    async with telling(settings, fresh_database) as (house, told):
        _, closed = await house.asked("put", "closed")
        await house.approvals.deny(await house.person("bo"), closed, reason="no")
        await tell(house, told)
        assert receiver.heard == []
        # A full mailbox does not keep it.
        _, broken = await house.asked("put", "broken")
        await house.lab.db.execute("update deputize.mailboxes set told = 100, window_ends = now() + interval '1 day'")
        await house.lab.db.execute(
            "insert into deputize.notices (tenant, ticket, grp, kind) values ('dev', $1, 'approvers', 'broken-glass')",
            broken,
        )
        await house.lab.db.execute("update deputize.approvals set state = 'approved' where id = $1", broken)
        await tell(house, told)
        assert [_kind(heard) for heard in receiver.heard] == ["broken-glass"]
        assert orjson.loads(receiver.heard[0].body)["type"] == "tool.permission.decided"


async def test_who_is_asked_later_is_told_when_it_is_their_turn(
    fresh_database: str, tmp_path: Path, receiver: Receiver, other: Receiver
) -> None:
    settings = notified(fresh_database, tmp_path, to("keepers", receiver.url), to("elders", other.url))
    async with telling(settings, fresh_database) as (house, told):
        _, ticket = await house.asked("erase", "turns")
        await tell(house, told)
        assert (len(receiver.heard), len(other.heard)) == (1, 0)
        await house.lab.db.execute(
            "update deputize.approvals set opened_at = opened_at - interval '61 minutes', next_at = now()"
        )
        await Clockwork(house.lab.rooms).sweep()
        await tell(house, told)
        assert [_kind(heard) for heard in receiver.heard] == ["asked", "reminder"]
        assert [_kind(heard) for heard in other.heard] == ["escalated"]
        assert orjson.loads(other.heard[0].body)["subject"] == ticket


async def test_a_group_nobody_named_an_address_for_leaves_nothing_behind(fresh_database: str, tmp_path: Path) -> None:
    async with telling(notified(fresh_database, tmp_path), fresh_database) as (house, told):
        await house.asked("put", "nobody")
        assert await left(house) == (1, 0)
        await tell(house, told)
        assert await left(house) == (0, 0)


async def test_a_receiver_hears_of_its_own_tenants_only(
    fresh_database: str, tmp_path: Path, receiver: Receiver, other: Receiver
) -> None:
    settings = notified(
        fresh_database, tmp_path, to("approvers", receiver.url, "dev"), to("approvers", other.url, "twin-*")
    )
    async with telling(settings, fresh_database) as (house, told):
        for number in range(7):
            await house.asked("put", f"mine-{number}")
        _, ticket = await house.asked("put", "same-id")
        db = house.lab.db
        await db.execute("insert into deputize.tenants (tenant) values ('twin-1')")
        # What belongs to another tenant, under the same ids.
        await db.execute(
            "insert into deputize.notices (tenant, ticket, grp, kind) values ('twin-1', $1, 'approvers', 'asked')",
            ticket,
        )
        await told.write()
        mark = await db.fetchval("select receiver from deputize.letters where tenant = 'dev'")
        await tell(house, told)
        assert [orjson.loads(heard.body)["data"]["count"] for heard in receiver.heard] == [8]
        # The twin has no such ticket, so there is nothing to tell.
        assert other.heard == []
        # A letter in its name to somebody else's receiver finds none.
        await _copy_of_ticket(db, ticket)
        await db.execute(
            "insert into deputize.letters (tenant, grp, receiver, kind) values ('twin-1', 'approvers', $1, 'digest')",
            mark,
        )
        await tell(house, told)
        assert (len(receiver.heard), other.heard) == (1, [])
        problem = await db.fetchval("select problem from deputize.letters")
        assert problem == "the settings of this process do not name its receiver"
        # In its own name it is told to its own, and of its own.
        await db.execute(
            "insert into deputize.notices (tenant, ticket, grp, kind)"
            " select 'twin-1', gen_random_uuid(), 'approvers', 'asked' from generate_series(1, 9)"
        )
        await tell(house, told)
        assert [orjson.loads(heard.body)["data"]["count"] for heard in other.heard] == [1]
        assert len(receiver.heard) == 1


async def _copy_of_ticket(db: asyncpg.Connection, ticket: str) -> None:
    await db.execute("insert into deputize.approval_groups values ('twin-1', 'approvers', $1)", ticket)
    await db.execute(
        "insert into deputize.approvals (tenant, id, call_id, binding, demands, shown, chain, tool, group_key, levels,"
        " expires_at) select 'twin-1', id, call_id, binding, demands, shown, chain, tool, group_key, levels, expires_at"
        " from deputize.approvals where tenant = 'dev' and id = $1",
        ticket,
    )


async def test_tellers_share_the_work_and_send_each_letter_once(
    fresh_database: str, tmp_path: Path, receiver: Receiver
) -> None:
    settings = notified(fresh_database, tmp_path, to("approvers", receiver.url), to("keepers", receiver.url))
    async with telling(settings, fresh_database) as (house, told):
        tickets = [(await house.asked("put", f"both-{number}"))[1] for number in range(5)]
        tickets += [(await house.asked("erase", f"both-{number}"))[1] for number in range(5)]
        egress = Egress(allow_hosts=frozenset({"127.0.0.1"}))
        second = Telling(house.lab.rooms, egress.send)
        for _ in range(3):
            await asyncio.gather(told.write(), second.write(), told.send(), second.send())
        assert Counter(orjson.loads(heard.body)["subject"] for heard in receiver.heard) == Counter(tickets)
        assert await left(house) == (0, 0)
        await egress.aclose()


async def test_who_dies_while_sending_leaves_the_letter_to_the_next(
    fresh_database: str, tmp_path: Path, receiver: Receiver
) -> None:
    settings = notified(fresh_database, tmp_path, to("approvers", receiver.url))
    async with telling(settings, fresh_database) as (house, told):
        await house.asked("put", "dies")
        await told.write()
        receiver.statuses = [204]

        async def dies(*_: Any, **__: Any) -> int:
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await Telling(house.lab.rooms, dies).send()
        assert await left(house) == (0, 1)
        assert await told.send() == 0
        letter = await house.lab.db.fetchval("select id from deputize.letters")
        await tell(house, told)
        assert [heard.headers["webhook-id"] for heard in receiver.heard] == [str(letter)]


async def test_a_worker_tells_by_itself(fresh_database: str, tmp_path: Path, receiver: Receiver) -> None:
    settings = notified(fresh_database, tmp_path, to("approvers", receiver.url))
    settings = settings.model_copy(update={"timing": settings.timing.model_copy(update={"sweep_seconds": 0.1})})
    async with telling(settings, fresh_database) as (house, _), open_worker(house.lab.gateway):
        await house.asked("put", "by-itself")
        await receiver.until(1)

        async def is_done() -> bool:
            return await left(house) == (0, 0)

        await until(is_done)
