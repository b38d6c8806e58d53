"""What gives authority needs an operator besides the scope; what takes it away needs only the scope."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest
import pytest_asyncio

from deputize.app import open_gateway
from deputize.core.caller import ADMIN_SCOPE, Caller
from deputize.core.clock import Clock
from deputize.core.contract.contract import LifecycleState
from deputize.core.errors import OperatorConfirmationRequired, ToolNotAdmitted
from deputize.core.settings import IdentitySettings, IssuerSettings
from deputize.govern.approvals.confirmation_codes import ConfirmationCode
from deputize.govern.identity.dev_issuer import load_dev_issuer, mint_dev_token
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.operations.gateway import Gateway
from tests.support.gateway_lab import lab_settings
from tests.support.operators import load_operator_issuer
from tests.support.policies import OPEN_FILES
from tests.support.scripted_tools import TOOLS

pytestmark = pytest.mark.requirement("GOV-2")

NEW_CONTRACT = TOOLS[0].contract.model_copy(update={"name": "unseen"})
PERMIT_ALL = [PolicyFile(path="open.cedar", text='@id("open-wide") permit (principal, action, resource);')]
Act = Callable[[Gateway, Caller], Awaitable[Any]]

GIVING: dict[str, Act] = {
    "policies": lambda gateway, caller: gateway.commands.put_policies(caller, PERMIT_ALL),
    "a new contract": lambda gateway, caller: gateway.commands.register_tool(caller, NEW_CONTRACT),
    "a switch turned on": lambda gateway, caller: gateway.commands.set_switch(caller, "agent", "bot", off=False),
    "a secret": lambda gateway, caller: gateway.commands.put_secret(caller, "crm/key", "canary-0001"),
    "a version made available": lambda gateway, caller: gateway.commands.set_state(
        caller, "lab.look", "0.1.0", LifecycleState.AVAILABLE
    ),
}


@dataclass
class OperatedGateway:
    gateway: Gateway
    folder: Path
    db: asyncpg.Connection
    codes: list[ConfirmationCode] = field(default_factory=list)

    async def sign_in(self, user: str = "root", *, seconds_ago: int = 0, **claims: Any) -> Caller:
        clock = Clock()
        then = Clock(epoch_ms=lambda: clock.epoch_ms() - 1000 * seconds_ago)
        token = mint_dev_token(self.folder, subject=user, scopes=(ADMIN_SCOPE,), clock=then, **claims)
        return await self.gateway.authenticate(f"Bearer {token}".encode())

    async def fetch_entries(self, kind: str) -> list[dict[str, Any]]:
        rows = await self.db.fetch("select entry from deputize.audit_entries where call_id is null order by id")
        return [entry for entry in (orjson.loads(row["entry"]) for row in rows) if entry["kind"] == kind]


@asynccontextmanager
async def open_operated_gateway(dsn: str, folder: Path, issuer: IssuerSettings) -> AsyncIterator[OperatedGateway]:
    settings = lab_settings(dsn, folder).model_copy(update={"identity": IdentitySettings(issuers=(issuer,))})
    codes: list[ConfirmationCode] = []
    db = await asyncpg.connect(dsn)
    try:
        async with open_gateway(settings, tools=TOOLS, development=True, show_confirmation=codes.append) as gateway:
            yield OperatedGateway(gateway=gateway, folder=folder, db=db, codes=codes)
    finally:
        await db.close()


@pytest_asyncio.fixture(loop_scope="session")
async def production(fresh_database: str, tmp_path: Path) -> AsyncIterator[OperatedGateway]:
    """A gateway whose operators sign in at an issuer."""
    async with open_operated_gateway(fresh_database, tmp_path, load_operator_issuer(tmp_path)) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def development(fresh_database: str, tmp_path: Path) -> AsyncIterator[OperatedGateway]:
    """A gateway of `deputize dev`, whose tokens prove nothing."""
    async with open_operated_gateway(fresh_database, tmp_path, load_dev_issuer(tmp_path)) as opened:
        yield opened


async def get_refusal(act: Awaitable[Any]) -> OperatorConfirmationRequired:
    with pytest.raises(OperatorConfirmationRequired) as refused:
        await act
    return refused.value


async def test_only_a_fresh_sign_in_in_person_gives_authority(production: OperatedGateway) -> None:
    gateway, fresh = production.gateway, await production.sign_in()
    await gateway.commands.set_state(fresh, "lab.look", "0.1.0", LifecycleState.DISABLED)
    for caller, rule in (
        (await production.sign_in(seconds_ago=400), "operator-sign-in"),
        (replace(fresh, auth_time=0), "operator-sign-in"),
        (await production.sign_in(agent="bot"), "operator-in-person"),
        (replace(fresh, operator=False), "operator-issuer"),
    ):
        for name, act in GIVING.items():
            refusal = await get_refusal(act(gateway, caller))
            assert refusal.details["rule"] == rule, name
            if rule == "operator-sign-in":
                assert "deputize login --fresh --scope deputize:admin" in refusal.advice
    assert len(await production.fetch_entries("refusal")) == 4 * len(GIVING)
    for name, act in GIVING.items():
        await act(gateway, fresh)
        entry = (await production.fetch_entries("command"))[-1]
        assert entry["confirmation"] == "operator-sign-in", name
    assert production.codes == [], "no code helps with tokens of a real issuer"


async def test_taking_authority_away_needs_only_the_scope(production: OperatedGateway) -> None:
    commands, stale = production.gateway.commands, await production.sign_in(agent="bot", seconds_ago=3000)
    await commands.put_secret(await production.sign_in(), "crm/key", "canary-0001")
    await commands.set_switch(stale, "agent", "other-bot", off=True)
    await commands.set_state(stale, "lab.look", "0.1.0", LifecycleState.DISABLED)
    await commands.delete_secret(stale, "crm/key")
    await commands.revoke(stale, "subject", "mallory")


async def test_what_changes_nothing_needs_no_operator(production: OperatedGateway) -> None:
    commands, stale = production.gateway.commands, await production.sign_in(seconds_ago=3000)
    assert await commands.register_tool(stale, TOOLS[0].contract) == "unchanged"
    assert (await commands.put_policies(await production.sign_in(), OPEN_FILES)).is_new
    assert not (await commands.put_policies(stale, OPEN_FILES)).is_new


async def test_in_development_a_token_of_the_gateway_itself_needs_the_code_too(development: OperatedGateway) -> None:
    """An agent that reads the project's folder can sign one."""
    developer = await development.sign_in("developer")
    client = replace(developer, issuer="http://127.0.0.1:8000/t/dev", operator=True, user="ci")
    refusal = await get_refusal(development.gateway.commands.put_policies(client, PERMIT_ALL))
    assert refusal.details["rule"] == "operator-terminal-code"


async def test_a_development_token_needs_the_terminals_code_for_exactly_this_act(development: OperatedGateway) -> None:
    gateway, developer = development.gateway, await development.sign_in("developer")
    await gateway.commands.set_state(developer, "lab.look", "0.1.0", LifecycleState.DISABLED)
    for name, act in GIVING.items():
        refusal = await get_refusal(act(gateway, developer))
        shown = development.codes[-1]
        assert refusal.details["rule"] == "operator-terminal-code", name
        assert (refusal.details["confirmation_id"], shown.code in str(refusal.details)) == (
            shown.confirmation_id,
            False,
        )
        await act(gateway, replace(developer, confirmation_code=shown.code))
        assert (await development.fetch_entries("command"))[-1]["confirmation"] == "operator-terminal-code"
    # A code is used once, and names the content: the same secret again, and another, need another code.
    spent = replace(developer, confirmation_code=development.codes[-2].code)
    await get_refusal(gateway.commands.put_secret(spent, "crm/key", "canary-0001"))
    code = development.codes[-1].code
    await get_refusal(
        gateway.commands.put_secret(replace(developer, confirmation_code=code), "crm/key", "canary-another")
    )


async def test_an_agent_gives_no_authority_even_with_a_code(development: OperatedGateway) -> None:
    agent = await development.sign_in("developer", agent="assistant")
    refusal = await get_refusal(development.gateway.commands.put_policies(agent, PERMIT_ALL))
    assert (refusal.details["rule"], development.codes) == ("operator-in-person", [])
    assert (await development.gateway.explanations.show_active_policies(agent))["files"][0]["path"] != "open.cedar"


async def test_an_act_that_would_fail_asks_no_one(development: OperatedGateway) -> None:
    bad = TOOLS[0].contract.model_copy(update={"name": "bare", "input_schema": {"type": "object"}})
    with pytest.raises(ToolNotAdmitted):
        await development.gateway.commands.register_tool(await development.sign_in("developer"), bad)
    assert development.codes == []


async def test_the_terminal_gets_what_the_act_would_change(development: OperatedGateway) -> None:
    commands, developer = development.gateway.commands, await development.sign_in("developer")
    active = (await development.gateway.explanations.show_active_policies(developer))["files"]
    await get_refusal(commands.put_policies(developer, PERMIT_ALL))
    assert [(each.name, each.old, each.new) for each in development.codes[-1].changes] == sorted(
        [*((file["path"], file["text"], None) for file in active), (PERMIT_ALL[0].path, None, PERMIT_ALL[0].text)]
    )
    await commands.put_policies(replace(developer, confirmation_code=development.codes[-1].code), PERMIT_ALL)

    await get_refusal(commands.put_policies(developer, []))
    assert {each.name: each.new is None for each in development.codes[-1].changes}[PERMIT_ALL[0].path]
    contract = TOOLS[0].contract.model_copy(update={"version": "9.0.0", "description": "Do something else entirely."})
    await get_refusal(commands.register_tool(developer, contract))
    (change,) = development.codes[-1].changes
    assert change.name == contract.full_name
    assert '"Do something else entirely."' in str(change.new)
    assert '"Do something else entirely."' not in str(change.old)
