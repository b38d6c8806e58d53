"""Declare a flow in Python: the same contract as in a manifest, with steps as plain data."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.manifest import parse_contract
from deputize.core.contract.tools import FlowTool
from deputize.core.errors import ToolNotAdmitted


def flow(
    name: str,
    *,
    steps: Sequence[Mapping[str, Any]],
    output: str | Mapping[str, str] | None = None,
    on_failure: Literal["compensate", "keep"] | None = None,
    **fields: Any,
) -> FlowTool:
    """Declare a flow with these steps; `fields` are those of a manifest. Assign it to a name of a tool file."""
    definition: dict[str, Any] = {"steps": list(steps)}
    if output is not None:
        definition["output"] = output
    if on_failure is not None:
        definition["on_failure"] = on_failure
    try:
        contract = parse_contract({"name": name, "flow": definition, **fields})
    except ToolNotAdmitted as error:
        sentences = (f"{each['path'].strip('/')} {each['reason']}; {each['fix']}" for each in error.details["reasons"])
        raise WrongDeclaration(*(f"{name}: {each}" for each in sentences)) from error
    return FlowTool(contract=contract, module=str(sys._getframe(1).f_globals.get("__name__", "")))
