"""A gateway with faults in it: most searches fail, tools that are listed or shown lack their digest, approval requests
what is asked, and approvals the rules that asked.

The faults lie where any fuzzer treads: which cases Hypothesis makes of one seed differs between machines.
"""

from dataclasses import replace
from typing import Any

from deputize.core.caller import Caller
from deputize.operations.admin.human_tasks import HumanTasks
from deputize.operations.approvals.decisions import ApprovalDecisions
from deputize.operations.gateway import Gateway
from deputize.operations.views.surface import Surface, ToolListPage
from proofs.kit.gateway_internals import get_runtime
from proofs.kit.gateway_variant import serve_variant


class FaultySurface(Surface):
    async def search_tools(self, caller: Caller, query: str, *, limit: int = 10) -> dict[str, Any]:
        if query:
            raise RuntimeError("planted")
        return await super().search_tools(caller, query, limit=limit)

    async def show_tool(self, caller: Caller, name: str, version: str = "latest") -> dict[str, Any]:
        tool = await super().show_tool(caller, name, version)
        return _without_digest(tool)

    async def list_tools(self, caller: Caller, *, after: str = "", limit: int = 100) -> ToolListPage:
        listing = await super().list_tools(caller, after=after, limit=limit)
        return replace(listing, tools=[_without_digest(each) for each in listing.tools])


def _without_digest(tool: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tool.items() if key != "digest"}


class QuestionlessTasks(HumanTasks):
    async def show_task(self, caller: Caller, task_id: str) -> dict[str, Any]:
        task = await super().show_task(caller, task_id)
        return {key: value for key, value in task.items() if key != "question"}


class RulelessApprovals(ApprovalDecisions):
    """The real one, with something left out of what people are shown."""

    def __init__(self, real: ApprovalDecisions) -> None:
        vars(self).update(vars(real))

    async def get_request(self, caller: Caller, approval_id: str) -> dict[str, Any]:
        approval = await super().get_request(caller, approval_id)
        return {key: value for key, value in approval.items() if key != "rules"}


def change(gateway: Gateway) -> Gateway:
    runtime = get_runtime(gateway)
    approvals = RulelessApprovals(gateway.approvals)
    return replace(gateway, surface=FaultySurface(runtime), human_tasks=QuestionlessTasks(runtime), approvals=approvals)


if __name__ == "__main__":
    serve_variant(change)
