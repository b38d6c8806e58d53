"""A gateway whose rules ask about some tools, a worker that carries what was approved, and people who decide."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deputize.app import open_worker
from deputize.core.caller import Caller
from deputize.core.run_settings import Runs
from deputize.govern.policy.rules import PolicyFile
from deputize.lifecycle.approvals.decide import Approvals
from deputize.lifecycle.worker import Worker
from tests.integration.lifecycle.lab import Lab, body, open_lab

RULES = """
@id("open")
permit (principal, action, resource) unless {
  resource in [Tool::"lab.put", Tool::"lab.note", Tool::"lab.erase", Tool::"lab.look"]
};

@id("writes-ask")
@reason("Somebody agrees before it is put there.")
@decision("ask")
permit (principal, action, resource) when {
  resource in [Tool::"lab.put", Tool::"lab.note", Tool::"lab.look"]
};

@id("erasing-asks-two")
@decision("ask")
@approvers("keepers, elders")
@quorum("2")
permit (principal, action, resource == Tool::"lab.erase");
"""


@dataclass
class House:
    lab: Lab
    worker: Worker | None = None

    @property
    def approvals(self) -> Approvals:
        return self.lab.gateway.approvals

    async def person(self, user: str, *, groups: Iterable[str] = ("approvers",), **more: Any) -> Caller:
        """Somebody who signed in for the console a moment ago."""
        caller = await self.lab.caller(user, scopes=())
        now = self.lab.rooms.clock.epoch_ms() // 1000
        facts: dict[str, Any] = {"human": True, "console": True, "auth_time": now, "groups": frozenset(groups)}
        return replace(caller, **{**facts, **more})

    async def asked(self, tool: str, tag: str, **request: Any) -> tuple[str, str]:
        """The call and the ticket of something that people are asked about."""
        request.setdefault("key", f"{tool}-{tag}")
        outcome = await self.lab.call(tool, tag, **request)
        assert outcome.http_status == 202, outcome.body
        told = body(outcome)
        assert told["state"] == "awaiting_approval"
        return told["call_id"], told["approval"]["ticket_id"]

    async def put_rules(self, text: str) -> None:
        await self.lab.gateway.commands.put_policies(
            await self.lab.admin(), [PolicyFile(path="rules.cedar", text=text)]
        )

    async def ticket(self, ticket: str) -> Any:
        return await self.lab.db.fetchrow("select * from deputize.approvals where id = $1", ticket)


@asynccontextmanager
async def open_house(
    dsn: str, folder: Path, *, working: bool = True, rules: str | None = RULES, **more: Any
) -> AsyncIterator[House]:
    runs = Runs(poll_seconds=0.05, drain_seconds=1)
    timing = {"lease_seconds": 10, "sweep_seconds": 0.1}
    async with open_lab(dsn, folder, runs=runs, **{**timing, **more}) as lab:
        house = House(lab=lab)
        if rules is not None:
            await house.put_rules(rules)
        if not working:
            yield house
            return
        async with open_worker(lab.gateway) as worker:
            house.worker = worker
            yield house
