"""In development whoever reads the terminal decides, and nobody else does: no token of that issuer is enough."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest
import pytest_asyncio

from deputize.app import open_gateway
from deputize.core.caller import ADMIN_SCOPE, BREAK_GLASS_SCOPE, Caller
from deputize.core.errors import NotAnApprover, TicketNotFound
from deputize.core.settings import Policy
from deputize.govern.approvals.codes import Told
from deputize.lifecycle.approvals.terminal import ByCode, by_code
from tests.integration.approvals.house import RULES, House
from tests.integration.lifecycle.lab import Lab, lab_settings
from tests.integration.lifecycle.tools import TOOLS

pytestmark = pytest.mark.requirement("GOV-3")


@dataclass
class Desk:
    """A development gateway with a terminal."""

    house: House
    lines: list[Told]

    def code(self, ticket: str) -> str:
        return next(line.code for line in reversed(self.lines) if line.ticket_id == ticket)

    async def decider(self, ticket: str, code: str) -> Caller:
        """Whoever shows a code on the command line, where the project's own token comes along."""
        return await self.house.approvals.at_terminal(await self.house.lab.admin("developer"), ticket, code)

    async def refusals(self, ticket: str) -> list[dict[str, Any]]:
        rows = await self.house.lab.db.fetch("select entry from deputize.audit_entries order by id")
        entries = [orjson.loads(row["entry"]) for row in rows]
        return [each for each in entries if each["kind"] == "refusal" and each.get("subject") == ticket]

    def browser(self) -> ByCode:
        async def complete(caller: Caller) -> Caller:
            return caller

        found = by_code(self.house.lab.rooms, self.house.approvals, complete)
        assert found is not None
        return found


@asynccontextmanager
async def open_desk(dsn: str, folder: Path, *, development: bool = True) -> AsyncIterator[Desk]:
    lines: list[Told] = []
    db = await asyncpg.connect(dsn)
    (folder / "rules.cedar").write_text(RULES)
    policy = Policy(files=(str(folder / "rules.cedar"),))
    settings = lab_settings(dsn, folder).model_copy(update={"policy": policy})
    try:
        async with open_gateway(settings, tools=TOOLS, development=development, tell_code=lines.append) as gateway:
            yield Desk(house=House(lab=Lab(gateway=gateway, folder=folder, dsn=dsn, db=db)), lines=lines)
    finally:
        await db.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("desk")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk(module_database: str, folder: Path) -> AsyncIterator[Desk]:
    async with open_desk(module_database, folder) as opened:
        yield opened


async def test_the_terminal_shows_a_code_and_whoever_shows_it_decides(desk: Desk) -> None:
    call, ticket = await desk.house.asked("put", "t1")
    line = next(line for line in desk.lines if line.ticket_id == ticket)
    assert (line.tenant, line.tool.partition("@")[0], line.user) == ("dev", "lab.put", "ana")
    person = await desk.decider(ticket, line.code)
    assert (person.user, person.human, set(person.groups)) == ("terminal", True, {"approvers"})
    assert (await desk.house.approvals.approve(person, ticket))["state"] == "approved"
    assert await desk.house.lab.state(call) == "queued"


async def test_the_same_key_again_shows_nothing_new(desk: Desk) -> None:
    _, ticket = await desk.house.asked("put", "t2")
    await desk.house.asked("put", "t2")
    assert sum(line.ticket_id == ticket for line in desk.lines) == 1


async def test_no_token_of_the_development_issuer_decides(desk: Desk) -> None:
    _, ticket = await desk.house.asked("put", "t3")
    everything = (ADMIN_SCOPE, BREAK_GLASS_SCOPE, "lab:write")
    tries: list[tuple[dict[str, Any], str]] = [
        ({"user": "ana"}, "console-audience"), ({"user": "boss"}, "console-audience"),
        ({"user": "terminal"}, "console-audience"), ({"user": "boss", "agent": "bot"}, "humans-only"),
    ]  # fmt: skip
    for who, rule in tries:
        caller = await desk.house.lab.caller(scopes=everything, **who)
        for decide in (desk.house.approvals.approve, desk.house.approvals.deny, desk.house.approvals.break_glass):
            with pytest.raises(NotAnApprover) as refused:
                await decide(caller, ticket, reason="let me")
            assert refused.value.details["rule"] == rule
    assert len(await desk.refusals(ticket)) == len(tries) * 3
    assert (await desk.house.ticket(ticket))["state"] == "open"


async def test_a_wrong_code_and_one_of_another_ticket_are_refused_and_on_record(desk: Desk) -> None:
    _, ticket = await desk.house.asked("put", "t4")
    _, other = await desk.house.asked("put", "t5")
    for wrong in ("0000-0000", desk.code(other)):
        with pytest.raises(NotAnApprover) as refused:
            await desk.decider(ticket, wrong)
        assert refused.value.details["rule"] == "terminal-code"
    assert [each["error"] for each in await desk.refusals(ticket)] == ["E3228", "E3228"]


async def test_guessing_locks_the_ticket_even_for_the_right_code(desk: Desk) -> None:
    _, ticket = await desk.house.asked("put", "t6")
    for number in range(5):
        with pytest.raises(NotAnApprover):
            await desk.decider(ticket, f"0000-000{number}")
    with pytest.raises(NotAnApprover, match="too many"):
        await desk.decider(ticket, desk.code(ticket))
    assert len(await desk.refusals(ticket)) == 6


async def test_where_two_people_are_needed_the_terminal_shows_two_codes(desk: Desk) -> None:
    _, ticket = await desk.house.asked("erase", "t7")
    first = desk.code(ticket)
    person = await desk.decider(ticket, first)
    assert (await desk.house.approvals.approve(person, ticket))["state"] == "open"
    assert desk.code(ticket) != first
    with pytest.raises(NotAnApprover):
        await desk.decider(ticket, first)
    with pytest.raises(NotAnApprover) as refused:
        await desk.house.approvals.approve(person, ticket)
    assert refused.value.details["rule"] == "one-vote-each"
    second = await desk.decider(ticket, desk.code(ticket))
    assert (await desk.house.approvals.approve(second, ticket))["state"] == "approved"


async def test_a_browser_without_a_token_shows_the_code_too(desk: Desk) -> None:
    _, ticket = await desk.house.asked("put", "t8")
    person = await desk.browser()(ticket, desk.code(ticket).lower())
    assert (person.tenant, person.user) == ("dev", "terminal")
    with pytest.raises(NotAnApprover):
        await desk.browser()(ticket, "0000-0000")
    for unknown in ("01890000-0000-7000-8000-00000000000a", "", "x"):
        with pytest.raises(TicketNotFound):
            await desk.browser()(unknown, desk.code(ticket))


async def test_a_code_is_in_no_answer_row_entry_or_log(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    call, ticket = await desk.house.asked("put", "t9")
    code = desk.code(ticket)
    shown = await desk.house.approvals.show(await desk.house.lab.admin(), ticket)
    page = await desk.house.approvals.page(await desk.house.lab.admin())
    entries = await desk.house.lab.entries(call)
    assert code not in f"{shown}{page}{entries}{desk.lines}{caplog.text}"
    tables = await desk.house.lab.db.fetch("select tablename from pg_tables where schemaname = 'deputize'")
    for table in tables:
        rows = await desk.house.lab.db.fetch(f"select t::text as line from deputize.{table['tablename']} t")
        assert not any(code in row["line"] or code.encode().hex() in row["line"] for row in rows)


async def test_a_gateway_that_starts_again_shows_new_codes_of_what_is_open(
    desk: Desk, module_database: str, folder: Path
) -> None:
    _, ticket = await desk.house.asked("put", "t10")
    before = desk.code(ticket)
    async with open_desk(module_database, folder) as again:
        assert again.code(ticket) != before
        with pytest.raises(NotAnApprover):
            await again.decider(ticket, before)
        assert (await again.decider(ticket, again.code(ticket))).user == "terminal"


async def test_outside_development_no_code_is_shown_and_none_is_taken(
    desk: Desk, module_database: str, folder: Path
) -> None:
    _, ticket = await desk.house.asked("put", "t11")
    async with open_desk(module_database, folder, development=False) as serving:
        assert serving.lines == []
        with pytest.raises(NotAnApprover, match="takes no codes"):
            await serving.decider(ticket, desk.code(ticket))
        assert by_code(serving.house.lab.rooms, serving.house.approvals, lambda caller: None) is None  # type: ignore[arg-type, return-value]  # never called


async def test_whoever_may_break_the_glass_sees_what_nobody_asked_them_about(desk: Desk) -> None:
    _, ticket = await desk.house.asked("put", "t12")
    stranger = await desk.house.person("zoe", groups=("others",))
    with pytest.raises(TicketNotFound):
        await desk.house.approvals.show(stranger, ticket)
    helper = await desk.house.person("zoe", groups=("others",), scopes=frozenset({BREAK_GLASS_SCOPE}))
    assert not (await desk.house.approvals.show(helper, ticket))["may_decide"]
    assert (await desk.house.approvals.break_glass(helper, ticket, reason="the site is down"))["state"] == "open"
