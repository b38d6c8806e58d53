"""Export tools and surfaces for other systems, as far as the caller's token lets it see them."""

import asyncio
from typing import Any

import orjson

from deputize.catalog.exchange.agent_tool.call_mapping import export_record
from deputize.catalog.exchange.agent_tool.object_kinds import SCHEMA_VERSION, ObjectKind
from deputize.catalog.exchange.agent_tool.tool_document import export_tool_document
from deputize.catalog.exchange.function_definition import FunctionDefinition, build_function_definition
from deputize.catalog.snapshot import ToolVersion
from deputize.core.caller import Caller
from deputize.core.canonical import compute_digest
from deputize.core.contract.export_format import ExportFormat
from deputize.core.hooks import LoadedHook
from deputize.core.json_values import run_for_value
from deputize.govern.token_authorization import is_tool_visible
from deputize.lifecycle.runtime import Runtime
from deputize.operations.views.surface import Surface
from deputize.operations.views.tool_status import ToolSelection, ToolStatus

_DIGEST_LENGTH = 32


class ToolExports:
    def __init__(self, runtime: Runtime, surface: Surface) -> None:
        self._runtime = runtime
        self._surface = surface

    async def export_tool(self, caller: Caller, name: str, version: str, form: ExportFormat) -> dict[str, Any]:
        """Export one version of a tool. Where it runs, internal arguments and hooks are for administrators only."""
        authority = await self._runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        tool_version = authority.tools.resolve_version(
            name, version, visible=lambda each: is_tool_visible(caller, each)
        )
        tool = await tool_version.load_tool()
        # A contract can keep many foreign fields, so a document is always written in a thread.
        export = (
            await asyncio.to_thread(self._export_document, tool_version, is_whole=caller.is_admin)
            if form is ExportFormat.AGENT_TOOL
            else await run_for_value(
                tool.model_schema, build_function_definition, tool.contract, tool.model_schema, form
            )
        )
        return {
            "name": tool.name,
            "version": tool.contract.version,
            "digest": tool.digest,
            "format": form,
            "definition": export.definition,
            "warnings": export.warnings,
        }

    def _export_document(self, version: ToolVersion, *, is_whole: bool) -> FunctionDefinition:
        hooks = (
            [_export_hook(each) for each in self._runtime.hooks.list_matching(version.tool.name)] if is_whole else ()
        )
        document = export_tool_document(version.tool.contract, version.state, is_whole=is_whole, hooks=hooks)
        return FunctionDefinition(definition=document)

    async def export_surface(
        self, caller: Caller, selection: ToolSelection, *, after: str = "", limit: int = 100
    ) -> dict[str, Any]:
        """Export a page of the caller's surface, and a reference for each deferred tool of it."""
        page = await self._surface.list_availability(caller, selection, after=after, limit=limit)
        selection_facts = {
            "namespaces": sorted(selection.namespaces),
            "tags": sorted(selection.tags),
            "worst": None if selection.max_effects is None else selection.max_effects.value,
        }
        deferred_tools = [each for each in page["tools"] if each["status"] == ToolStatus.DEFERRED]
        references = [await self._describe_deferred_tool(caller, each) for each in deferred_tools]
        record = {**page, "selection": selection_facts, "producer": f"deputize {self._runtime.release}"}
        return await asyncio.to_thread(_build_surface_document, record, references)

    async def _describe_deferred_tool(self, caller: Caller, tool: dict[str, Any]) -> dict[str, Any]:
        view = await self._surface.find_tool(caller, tool["name"], tool["version"])
        namespace, _, short_name = tool["name"].partition(".")
        return {
            **tool,
            "namespace": namespace,
            "short_name": short_name,
            "search_hint": None if view is None else view.contract.search_hint,
            "source": "registry",
            "selection_ref": f"/v1/tools/{tool['name']}",
        }


def _build_surface_document(record: dict[str, Any], references: list[dict[str, Any]]) -> dict[str, Any]:
    plain = {name: record[name] for name in ("scope", "policy_digest", "tools")}
    digest = compute_digest(orjson.loads(orjson.dumps(plain))).removeprefix("sha256:")[:_DIGEST_LENGTH]
    return {
        "schema_version": SCHEMA_VERSION,
        ObjectKind.TOOL_SURFACE.value: export_record(
            ObjectKind.TOOL_SURFACE, {**record, "surface_id": f"surface-{digest}"}
        ),
        ObjectKind.DEFERRED_TOOL_REF.value: [export_record(ObjectKind.DEFERRED_TOOL_REF, each) for each in references],
    }


def _export_hook(hook: LoadedHook) -> dict[str, Any]:
    record = {
        "name": hook.name,
        "moment": hook.moment,
        "tools": hook.tools,
        "seconds": hook.seconds,
        "source": hook.source,
    }
    return export_record(ObjectKind.TOOL_HOOK, record)
