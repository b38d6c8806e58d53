"""In development anyone who reads the terminal decides, and no one else does: no token of that issuer is enough."""

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
from deputize.core.errors import HumanTaskNotFound, NotAnApprover
from deputize.core.settings import PolicySettings
from deputize.govern.approvals.approval_codes import ApprovalCode
from deputize.operations.approvals.terminal_decisions import CodeVerifier, build_code_verifier
from tests.support.approval_lab import RULES, ApprovalLab
from tests.support.gateway_lab import GatewayLab, lab_settings
from tests.support.scripted_tools import TOOLS

pytestmark = pytest.mark.requirement("GOV-3")


@dataclass
class TerminalLab:
    """A development gateway with a terminal."""

    approval_lab: ApprovalLab
    lines: list[ApprovalCode]

    def find_code(self, request_id: str) -> str:
        return next(line.code for line in reversed(self.lines) if line.approval_id == request_id)

    async def caller_with_code(self, request_id: str, code: str) -> Caller:
        """Anyone who shows a code on the command line, where the project's own token comes along."""
        return await self.approval_lab.approvals.verify_terminal_code(
            await self.approval_lab.lab.make_admin("developer"), request_id, code
        )

    async def list_refusals(self, request_id: str) -> list[dict[str, Any]]:
        rows = await self.approval_lab.lab.db.fetch("select entry from deputize.audit_entries order by id")
        entries = [orjson.loads(row["entry"]) for row in rows]
        return [each for each in entries if each["kind"] == "refusal" and each.get("subject") == request_id]

    def make_code_session(self) -> CodeVerifier:
        async def complete(caller: Caller) -> Caller:
            return caller

        found = build_code_verifier(self.approval_lab.lab.runtime, self.approval_lab.approvals, complete)
        assert found is not None
        return found


@asynccontextmanager
async def open_terminal_lab(dsn: str, folder: Path, *, development: bool = True) -> AsyncIterator[TerminalLab]:
    lines: list[ApprovalCode] = []
    db = await asyncpg.connect(dsn)
    (folder / "rules.cedar").write_text(RULES)
    policy = PolicySettings(files=(str(folder / "rules.cedar"),))
    settings = lab_settings(dsn, folder).model_copy(update={"policy": policy})
    try:
        async with open_gateway(settings, tools=TOOLS, development=development, show_code=lines.append) as gateway:
            yield TerminalLab(
                approval_lab=ApprovalLab(lab=GatewayLab(gateway=gateway, folder=folder, dsn=dsn, db=db)), lines=lines
            )
    finally:
        await db.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("desk")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def terminal_lab(module_database: str, folder: Path) -> AsyncIterator[TerminalLab]:
    async with open_terminal_lab(module_database, folder) as opened:
        yield opened


async def test_the_terminal_shows_a_code_and_anyone_who_shows_it_decides(terminal_lab: TerminalLab) -> None:
    call, ticket = await terminal_lab.approval_lab.request_approval("put", "t1")
    line = next(line for line in terminal_lab.lines if line.approval_id == ticket)
    assert (line.tenant, line.tool.partition("@")[0], line.user) == ("dev", "lab.put", "ana")
    person = await terminal_lab.caller_with_code(ticket, line.code)
    assert (person.user, person.human, set(person.groups)) == ("terminal", True, {"approvers"})
    assert (await terminal_lab.approval_lab.approve(person, ticket))["state"] == "approved"
    assert await terminal_lab.approval_lab.lab.fetch_state(call) == "queued"


async def test_the_same_key_again_shows_nothing_new(terminal_lab: TerminalLab) -> None:
    _, ticket = await terminal_lab.approval_lab.request_approval("put", "t2")
    await terminal_lab.approval_lab.request_approval("put", "t2")
    assert sum(line.approval_id == ticket for line in terminal_lab.lines) == 1


async def test_no_token_of_the_development_issuer_decides(terminal_lab: TerminalLab) -> None:
    _, ticket = await terminal_lab.approval_lab.request_approval("put", "t3")
    everything = (ADMIN_SCOPE, BREAK_GLASS_SCOPE, "lab:write")
    tries: list[tuple[dict[str, Any], str]] = [
        ({"user": "ana"}, "console-audience"), ({"user": "boss"}, "console-audience"),
        ({"user": "terminal"}, "console-audience"), ({"user": "boss", "agent": "bot"}, "humans-only"),
    ]  # fmt: skip
    for who, rule in tries:
        caller = await terminal_lab.approval_lab.lab.make_caller(scopes=everything, **who)
        for decide in (
            terminal_lab.approval_lab.approve,
            terminal_lab.approval_lab.approvals.deny,
            terminal_lab.approval_lab.break_glass,
        ):
            with pytest.raises(NotAnApprover) as refused:
                await decide(caller, ticket, reason="let me")
            assert refused.value.details["rule"] == rule
    assert len(await terminal_lab.list_refusals(ticket)) == len(tries) * 3
    assert (await terminal_lab.approval_lab.fetch_request(ticket))["state"] == "open"


async def test_a_wrong_code_and_a_code_of_another_request_are_refused_and_audited(terminal_lab: TerminalLab) -> None:
    _, ticket = await terminal_lab.approval_lab.request_approval("put", "t4")
    _, other = await terminal_lab.approval_lab.request_approval("put", "t5")
    for wrong in ("0000-0000", terminal_lab.find_code(other)):
        with pytest.raises(NotAnApprover) as refused:
            await terminal_lab.caller_with_code(ticket, wrong)
        assert refused.value.details["rule"] == "terminal-code"
    assert [each["error"] for each in await terminal_lab.list_refusals(ticket)] == ["E3228", "E3228"]


async def test_guessing_locks_the_request_even_for_the_right_code(terminal_lab: TerminalLab) -> None:
    _, ticket = await terminal_lab.approval_lab.request_approval("put", "t6")
    for number in range(5):
        with pytest.raises(NotAnApprover):
            await terminal_lab.caller_with_code(ticket, f"0000-000{number}")
    with pytest.raises(NotAnApprover, match="too many"):
        await terminal_lab.caller_with_code(ticket, terminal_lab.find_code(ticket))
    assert len(await terminal_lab.list_refusals(ticket)) == 6


async def test_where_two_people_are_needed_the_terminal_shows_two_codes(terminal_lab: TerminalLab) -> None:
    _, ticket = await terminal_lab.approval_lab.request_approval("erase", "t7")
    first = terminal_lab.find_code(ticket)
    person = await terminal_lab.caller_with_code(ticket, first)
    assert (await terminal_lab.approval_lab.approve(person, ticket))["state"] == "open"
    assert terminal_lab.find_code(ticket) != first
    with pytest.raises(NotAnApprover):
        await terminal_lab.caller_with_code(ticket, first)
    with pytest.raises(NotAnApprover) as refused:
        await terminal_lab.approval_lab.approve(person, ticket)
    assert refused.value.details["rule"] == "one-vote-each"
    second = await terminal_lab.caller_with_code(ticket, terminal_lab.find_code(ticket))
    assert (await terminal_lab.approval_lab.approve(second, ticket))["state"] == "approved"


async def test_a_browser_without_a_token_shows_the_code_too(terminal_lab: TerminalLab) -> None:
    _, ticket = await terminal_lab.approval_lab.request_approval("put", "t8")
    person = await terminal_lab.make_code_session()(ticket, terminal_lab.find_code(ticket).lower())
    assert (person.tenant, person.user) == ("dev", "terminal")
    with pytest.raises(NotAnApprover):
        await terminal_lab.make_code_session()(ticket, "0000-0000")
    for unknown in ("01890000-0000-7000-8000-00000000000a", "", "x"):
        with pytest.raises(HumanTaskNotFound):
            await terminal_lab.make_code_session()(unknown, terminal_lab.find_code(ticket))


async def test_a_code_is_in_no_answer_row_entry_or_log(
    terminal_lab: TerminalLab, caplog: pytest.LogCaptureFixture
) -> None:
    call, ticket = await terminal_lab.approval_lab.request_approval("put", "t9")
    code = terminal_lab.find_code(ticket)
    shown = await terminal_lab.approval_lab.approvals.get_request(
        await terminal_lab.approval_lab.lab.make_admin(), ticket
    )
    page = await terminal_lab.approval_lab.approvals.list_requests(await terminal_lab.approval_lab.lab.make_admin())
    entries = await terminal_lab.approval_lab.lab.fetch_entries(call)
    assert code not in f"{shown}{page}{entries}{terminal_lab.lines}{caplog.text}"
    tables = await terminal_lab.approval_lab.lab.db.fetch(
        "select tablename from pg_tables where schemaname = 'deputize'"
    )
    for table in tables:
        rows = await terminal_lab.approval_lab.lab.db.fetch(
            f"select t::text as line from deputize.{table['tablename']} t"
        )
        assert not any(code in row["line"] or code.encode().hex() in row["line"] for row in rows)


async def test_a_gateway_that_starts_again_shows_new_codes_of_what_is_open(
    terminal_lab: TerminalLab, module_database: str, folder: Path
) -> None:
    _, ticket = await terminal_lab.approval_lab.request_approval("put", "t10")
    before = terminal_lab.find_code(ticket)
    async with open_terminal_lab(module_database, folder) as again:
        assert again.find_code(ticket) != before
        with pytest.raises(NotAnApprover):
            await again.caller_with_code(ticket, before)
        assert (await again.caller_with_code(ticket, again.find_code(ticket))).user == "terminal"


async def test_outside_development_no_code_is_shown_and_none_is_taken(
    terminal_lab: TerminalLab, module_database: str, folder: Path
) -> None:
    _, ticket = await terminal_lab.approval_lab.request_approval("put", "t11")
    async with open_terminal_lab(module_database, folder, development=False) as serving:
        assert serving.lines == []
        with pytest.raises(NotAnApprover, match="accepts no terminal codes"):
            await serving.caller_with_code(ticket, terminal_lab.find_code(ticket))
        approval_lab = serving.approval_lab

        async def complete_caller(caller: Caller) -> Caller:
            return caller

        assert build_code_verifier(approval_lab.lab.runtime, approval_lab.approvals, complete_caller) is None


async def test_anyone_who_may_break_the_glass_sees_what_nobody_asked_them_about(terminal_lab: TerminalLab) -> None:
    _, ticket = await terminal_lab.approval_lab.request_approval("put", "t12")
    stranger = await terminal_lab.approval_lab.make_approver("zoe", groups=("others",))
    with pytest.raises(HumanTaskNotFound):
        await terminal_lab.approval_lab.approvals.get_request(stranger, ticket)
    helper = await terminal_lab.approval_lab.make_approver(
        "zoe", groups=("others",), scopes=frozenset({BREAK_GLASS_SCOPE})
    )
    assert not (await terminal_lab.approval_lab.approvals.get_request(helper, ticket))["may_decide"]
    assert (await terminal_lab.approval_lab.break_glass(helper, ticket, reason="the site is down"))["state"] == "open"
