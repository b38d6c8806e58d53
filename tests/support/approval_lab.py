"""A gateway whose rules ask about some tools, a worker that carries what was approved, and people who decide."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deputize.app import open_worker
from deputize.core.caller import Caller
from deputize.core.settings.runs import RunSettings
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.operations.approvals.decisions import ApprovalDecisions
from deputize.operations.background.worker import Worker
from tests.support.gateway_lab import GatewayLab, open_lab, parse_body

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
class ApprovalLab:
    lab: GatewayLab
    worker: Worker | None = None

    @property
    def approvals(self) -> ApprovalDecisions:
        return self.lab.gateway.approvals

    async def approve(self, caller: Caller, request_id: str, *, reason: str = "") -> dict[str, Any]:
        """Approve a request as it is stored now, like a person who has just read it."""
        binding = await self._read_binding(caller, request_id)
        return await self.approvals.approve(caller, request_id, reason=reason, binding=binding)

    async def break_glass(self, caller: Caller, request_id: str, *, reason: str) -> dict[str, Any]:
        """Break glass for a request as it is stored now."""
        binding = await self._read_binding(caller, request_id)
        return await self.approvals.break_glass(caller, request_id, reason=reason, binding=binding)

    async def approve_many(self, caller: Caller, request_ids: Sequence[str], *, vary: Sequence[str]) -> Any:
        """Approve requests as they are stored now."""
        bindings = {each: await self._read_binding(caller, each) for each in request_ids}
        return await self.approvals.decide_many(caller, request_ids, "approve", reason="", vary=vary, bindings=bindings)

    async def _read_binding(self, caller: Caller, request_id: str) -> str:
        # Through the gateway's pool: `lab.db` is one connection, and tests decide concurrently.
        async with self.lab.runtime.store.read_transaction(caller.tenant) as connection:
            binding = await connection.fetchval("select binding from deputize.approvals where id = $1", request_id)
        return "0" * 64 if binding is None else bytes(binding).hex()

    async def make_approver(self, user: str, *, groups: Iterable[str] = ("approvers",), **more: Any) -> Caller:
        """Make a caller who signed in for the console a moment ago."""
        caller = await self.lab.make_caller(user, scopes=())
        now = self.lab.runtime.clock.epoch_ms() // 1000
        facts: dict[str, Any] = {"human": True, "console": True, "auth_time": now, "groups": frozenset(groups)}
        return replace(caller, **{**facts, **more})

    async def request_approval(self, tool: str, tag: str, **request: Any) -> tuple[str, str]:
        """Make a call that waits for approval; return its id and its request's."""
        request.setdefault("key", f"{tool}-{tag}")
        outcome = await self.lab.call(tool, tag, **request)
        assert outcome.http_status == 202, outcome.body
        told = parse_body(outcome)
        assert told["state"] == "awaiting_approval"
        return told["call_id"], told["approval"]["approval_id"]

    async def put_policies(self, text: str) -> None:
        await self.lab.gateway.commands.put_policies(
            await self.lab.make_admin(), [PolicyFile(path="rules.cedar", text=text)]
        )

    async def fetch_request(self, request_id: str) -> Any:
        return await self.lab.db.fetchrow("select * from deputize.approvals where id = $1", request_id)


@asynccontextmanager
async def open_approval_lab(
    dsn: str, folder: Path, *, with_worker: bool = True, rules: str | None = RULES, **more: Any
) -> AsyncIterator[ApprovalLab]:
    runs = RunSettings(poll_seconds=0.05, drain_seconds=1)
    timing = {"lease_seconds": 60, "sweep_seconds": 0.1}
    async with open_lab(dsn, folder, runs=runs, **{**timing, **more}) as lab:
        approval_lab = ApprovalLab(lab=lab)
        if rules is not None:
            await approval_lab.put_policies(rules)
        if not with_worker:
            yield approval_lab
            return
        async with open_worker(lab.gateway) as worker:
            approval_lab.worker = worker
            yield approval_lab
