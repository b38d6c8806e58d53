"""Run several calls of one request: side by side where that is safe, one after another where they change the same.

Each is a call of its own: it passes the whole lifecycle, counts against limits, may need approval, and has its own
audit entries. One that is not begun because of another is recorded as refused.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.call import CallRequest
from deputize.core.call_batch import CallBatch, CallEffects, find_conflicts
from deputize.core.caller import Caller
from deputize.core.canonical import write_sorted
from deputize.core.contract.contract import MutationClass
from deputize.core.errors import Problem, SiblingCanceled
from deputize.core.event_loop.interruption import Interruption
from deputize.core.json_values import is_large_document
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.govern.token_authorization import is_tool_visible, list_version_ranges
from deputize.lifecycle.run import Lifecycle
from deputize.lifecycle.tenant_snapshot import TenantAuthority

MAX_PARALLEL_CALLS: Final = 8
# A tool that changes more kinds of things runs alone: to compare them would hold up the event loop.
_MAX_WRITES: Final = 16


class CallBatches:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def run_calls(self, caller: Caller, batch: CallBatch) -> list[Outcome | Exception]:
        """Run the calls, and return their outcomes in their order; an unexpected error stands in its call's place."""
        authority = await self._lifecycle.runtime.authority.load_tenant(caller.tenant)
        effects = [self._find_effects(caller, authority, each.request) for each in batch.calls]
        return await _BatchRun(self._lifecycle, caller, batch, find_conflicts(effects)).run()

    def _find_effects(self, caller: Caller, authority: TenantAuthority, request: CallRequest) -> CallEffects:
        """Find what a call may change. Of a call that will be refused, or that hooks may change, it is not known."""
        try:
            version = authority.tools.resolve_version(
                request.tool,
                request.version,
                visible=partial(is_tool_visible, caller),
                list_ranges=partial(list_version_ranges, caller),
            )
        except Problem:
            return CallEffects()
        if version.is_large:
            # Compiling it here would hold up the event loop.
            return CallEffects()
        tool, hooks = version.tool, self._lifecycle.runtime.hooks
        has_hooks = hooks.is_configured and hooks.find_tool_hooks(tool.name) is not None
        return CallEffects(
            is_read=request.dry_run or tool.contract.mutation_class is MutationClass.READ,
            is_concurrency_safe=tool.contract.concurrency_safe,
            writes=None if has_hooks else _resolve_writes(tool, request.arguments),
            idempotency_key=request.idempotency_key,
        )


def _resolve_writes(tool: CompiledTool, arguments: Mapping[str, Any]) -> frozenset[tuple[str, str]] | None:
    """Resolve what a call may change; None if its contract says nothing or too much, or arguments may be coerced."""
    if not 0 < len(tool.contract.resources) <= _MAX_WRITES:
        return None
    if tool.scope_arguments:
        document = write_sorted(dict(arguments))
        if document is None or is_large_document(document) or tool.input.is_costly(document):
            return None
        if not tool.is_valid_input(arguments):
            return None
    return frozenset((each.resource, each.scope) for each in tool.resolve_writes(arguments))


class _BatchRun:
    """One batch on its way."""

    def __init__(
        self, lifecycle: Lifecycle, caller: Caller, batch: CallBatch, conflicts: tuple[frozenset[int], ...]
    ) -> None:
        self._lifecycle, self._caller, self._batch, self._conflicts = lifecycle, caller, batch, conflicts
        self._outcomes: dict[int, Outcome] = {}
        self._interruption = Interruption()
        self._failed_index: int | None = None
        self._slots = asyncio.Semaphore(MAX_PARALLEL_CALLS)
        self._tasks: list[asyncio.Task[Outcome | Exception]] = []

    async def run(self) -> list[Outcome | Exception]:
        self._tasks = [asyncio.create_task(self._run_call(index)) for index in range(len(self._batch.calls))]
        return await asyncio.gather(*self._tasks)

    async def _run_call(self, index: int) -> Outcome | Exception:
        call, conflicts = self._batch.calls[index], self._conflicts[index]
        earlier_tasks = [self._tasks[each] for each in sorted(call.depends_on | conflicts)]
        if earlier_tasks:
            await asyncio.wait(earlier_tasks)
        # Taken after the wait: calls that wait hold none, so those that they wait for can always go on.
        async with self._slots:
            problem = self._find_cancellation(index)
            try:
                if problem is not None:
                    outcome = await self._lifecycle.refuse(self._caller, call.request, problem)
                else:
                    outcome = await self._lifecycle.run(self._caller, self._complete_request(index))
            except Exception as error:  # noqa: BLE001 -- the other calls are still answered; interfaces hide it
                self._note_failure(index)
                return error
            self._outcomes[index] = outcome
            # One that was not begun has not failed.
            if problem is None and outcome.spec is not None:
                self._note_failure(index)
            return outcome

    def _complete_request(self, index: int) -> CallRequest:
        request = replace(self._batch.calls[index].request, interruption=self._interruption)
        for each in self._conflicts[index]:
            if (outcome := self._outcomes.get(each)) is not None and outcome.is_accepted:
                # What changes the same has not ended yet: this one takes its turn among the runs, which lock it.
                return replace(request, mode="async")
        return request

    def _find_cancellation(self, index: int) -> SiblingCanceled | None:
        """Find why a call is not begun; None if it is."""
        if self._batch.on_failure == "ignore":
            return None
        if self._failed_index is not None:
            return self._build_problem(self._failed_index, "failed")
        for each in sorted(self._batch.calls[index].depends_on):
            outcome = self._outcomes.get(each)
            if outcome is None or outcome.state is not State.SUCCEEDED:
                has_ended = outcome is None or not (outcome.is_accepted or outcome.state is State.NEEDS_INPUT)
                return self._build_problem(each, "did not succeed" if has_ended else "has not ended yet")
        return None

    def _note_failure(self, index: int) -> None:
        if self._batch.on_failure == "cancel_siblings" and self._failed_index is None:
            self._failed_index = index
            self._interruption.interrupt(self._build_problem(index, "failed").replace(nothing_happened=False))

    def _build_problem(self, sibling: int, what: str) -> SiblingCanceled:
        return SiblingCanceled(
            f"the call was canceled because calls[{sibling}] of its batch {what}",
            details={"sibling": sibling, "on_failure": self._batch.on_failure},
            nothing_happened=True,
        )
