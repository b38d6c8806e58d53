"""Declare `code.run`: a program that an agent wrote, on an interpreter without input or output: `[builtin.code]`.

Its functions are tools. `lifecycle/durable/program_run.py` makes each call of one a call of its own.
"""

from typing import Final

from deputize.catalog.importers.manifest import parse_contract
from deputize.core.contract.flow import PROGRAM_TOOL
from deputize.core.contract.tools import FlowTool

MAX_CODE: Final = 32_768
_DESCRIPTION: Final = (
    "Run a Python program that calls tools and computes with their results. A tool is a function with two underscores "
    "for the dot and arguments by name: orders__find(order_id='o1'). It returns the tool's result, and raises an "
    "exception if the call was refused or failed without effect. Each call is authorized like any other call, and may "
    "wait for approval. The value of the last line and what is printed are returned. There are no files, no network "
    "and no installed packages; of the standard library: asyncio, datetime, json, math, re and a few others. No "
    "generators and no inheritance. The clock stands still, and random numbers are the same each time."
)


def declare_tool() -> FlowTool:
    """Declare the tool; which tools its programs may call is the operator's choice, and no part of the contract."""
    contract = parse_contract(
        {
            "name": PROGRAM_TOOL,
            "version": "1.1.0",
            "title": "Run a program",
            "description": _DESCRIPTION,
            "kind": "code_execution",
            "provider": "deputize",
            "flow": {"program": "/input/code", "session": "/input/session", "on_failure": "keep"},
            "effects": "write",
            # Each call of its program is governed by what its own tool declares.
            "resources": ["create calls/own"],
            "auth": {"scopes": ["code:run"]},
            "timeout": 86_400,
            "open_world": False,
            "search_hint": "run Python code that calls several tools",
            "input_schema": {
                "type": "object",
                "additionalProperties": False,
                "required": ["code"],
                "properties": {
                    "code": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": MAX_CODE,
                        "description": "The program.",
                        "examples": ["sum([orders__find(order_id=each)['total'] for each in ['o1', 'o2']])"],
                    },
                    "session": {
                        "type": "string",
                        "pattern": "^(new|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$",
                        "description": "'new' keeps the variables for later programs; session.id of its result, "
                        "given here, goes on with them. A program that fails leaves them as they were before it.",
                        "examples": ["new"],
                    },
                },
            },
            "output_schema": {
                "type": "object",
                "additionalProperties": False,
                "required": ["result", "is_result_cut", "printed", "is_printed_cut", "calls"],
                "properties": {
                    "result": {"description": "The value of the last line; as text if it is not JSON, or was cut."},
                    "is_result_cut": {"type": "boolean"},
                    "printed": {"type": "string", "description": "What the program printed."},
                    "is_printed_cut": {"type": "boolean"},
                    "calls": {"type": "integer", "description": "How many calls it made."},
                    "session": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["id", "cells"],
                        "properties": {
                            "id": {"type": "string"},
                            "cells": {"type": "integer", "description": "How many programs it has kept."},
                        },
                    },
                },
            },
        }
    )
    return FlowTool(contract=contract)
