"""Flows for tests: contracts as a manifest declares them, of the tools of the lab."""

from typing import Any

from deputize.catalog.importers.manifest import parse_contract
from deputize.core.contract.contract import Contract
from deputize.core.contract.tools import FlowTool

TAG: dict[str, Any] = {"type": "string"}
VALUE: dict[str, Any] = {"type": "object"}


def make_flow(
    name: str, *steps: dict[str, Any], output: Any = None, on_failure: str | None = None, **fields: Any
) -> Contract:
    """A flow with the argument `tag`, that takes ten minutes at most."""
    flow: dict[str, Any] = {"steps": list(steps)} | ({} if on_failure is None else {"on_failure": on_failure})
    if output is not None:
        flow["output"] = output
    return parse_contract(
        {
            "name": f"lab.{name}",
            "version": "1.0.0",
            "description": "Do several things in order.",
            "flow": flow,
            "input_schema": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"tag": TAG},
                "required": ["tag"],
            },
            "output_schema": VALUE,
            "effects": "write",
            "resources": ["update lab.values/{tag}"],
            "auth": {"scopes": ["lab:write"]},
            "timeout": 36_000,
            **fields,
        }
    )


def make_flow_tool(name: str, *steps: dict[str, Any], **fields: Any) -> FlowTool:
    return FlowTool(contract=make_flow(name, *steps, **fields))


def call_step(name: str, tool: str, tag: str, **fields: Any) -> dict[str, Any]:
    """A step that calls a tool of the lab with a tag: a constant, or the value at a pointer."""
    source = {"bind": {"tag": tag}} if tag.startswith("/") else {"constants": {"tag": tag}}
    return {"name": name, "tool": f"lab.{tool}", **source, **fields}
