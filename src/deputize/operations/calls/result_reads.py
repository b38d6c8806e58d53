"""Serve the tool `results.read`: read a part of a stored result, for the caller that got its reference.

A call of it passes the lifecycle like any other: policies decide who may make it, and its entry says what was read. Its
own result is never stored behind a reference, so that reading ends.
"""

from typing import Any

from deputize.catalog.builtin_contracts import DEFAULT_READ_LENGTH, RESULTS_READ
from deputize.core.contract.tools import PythonTool, ToolContext
from deputize.core.errors import ToolPrecondition
from deputize.core.results.reader import PartNotFound, ResultReader
from deputize.core.results.result_path import parse_path
from deputize.store.stored_results import StoredResult, StoredResults

_NOT_FOUND = "there is no stored result with this reference that you can read"
_NOT_FOUND_ADVICE = "Check the reference. If it is old, call the tool that gave it again."


class ResultReads:
    """Reads stored results as a tool."""

    def __init__(self, results: StoredResults) -> None:
        self._results = results

    def build_tool(self) -> PythonTool:
        return PythonTool(contract=RESULTS_READ, run=self._read, is_async=True, takes_context=True)

    async def _read(
        self,
        *,
        context: ToolContext,
        reference: str,
        path: str = "",
        offset: int = 0,
        limit: int | None = None,
        max_characters: int = DEFAULT_READ_LENGTH,
        reveal: bool = False,
    ) -> dict[str, Any]:
        try:
            result_path = parse_path(path)
        except ValueError as error:
            raise ToolPrecondition(str(error)) from error
        result = await self._find_own_result(context, reference)
        start = result.original_start if reveal else 0

        async def load_chunk(number: int) -> bytes:
            return await self._results.load_chunk(context.tenant, reference, start + number)

        reader = ResultReader(result.original_index if reveal else result.visible_index, load_chunk)
        try:
            part = await reader.read(result_path, offset=offset, limit=limit, max_length=max_characters)
        except PartNotFound:
            raise ToolPrecondition(
                "the path leads to nothing in this result", advice="Read the whole result first, with an empty path."
            ) from None
        except LookupError as error:
            raise ToolPrecondition(_NOT_FOUND, advice=_NOT_FOUND_ADVICE) from error
        return {
            "tool": result.owner.tool,
            "call_id": result.owner.call_id,
            "path": path,
            "type": part.type,
            "value": part.value,
            "offset": part.offset,
            "total": part.total,
            "next_offset": part.next_offset,
            "is_cut": part.is_cut,
            "redaction": ("revealed" if reveal else "hidden") if result.is_redacted else "none",
        }

    async def _find_own_result(self, context: ToolContext, reference: str) -> StoredResult:
        """Find a result that the caller may read; another caller's looks as if there were none."""
        result = await self._results.find_result(context.tenant, reference)
        if result is None or context.may_read_result is None:
            raise ToolPrecondition(_NOT_FOUND, advice=_NOT_FOUND_ADVICE)
        owner = result.owner
        if not await context.may_read_result(owner.tool, owner.user, owner.agent_key):
            raise ToolPrecondition(_NOT_FOUND, advice=_NOT_FOUND_ADVICE)
        if result.is_expired:
            raise ToolPrecondition("the reference expired", advice="Call the tool that gave it again.")
        return result
