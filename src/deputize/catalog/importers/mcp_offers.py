"""What MCP servers have beside tools: which of it the operator serves, and the contracts it is read through.

A server that has resources gets one contract to read them, `read_resource`; one that has prompts gets `get_prompt`; and
one that completes arguments `complete`. They change nothing, whatever the server may say, for the protocol has no other
meaning for them; which resource and which prompt may be had is what somebody agreed to (`core/offers.py`), and rules
can look at it: `resource_uri` and `prompt_name` are facts.

Above: `lifecycle/servers/`, `catalog/drift/`. Below: `mcp.py`, for what the operator says of every contract.
"""

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from deputize.catalog.admission import admit
from deputize.catalog.importers.mcp import any_glob, read_by_operator, served
from deputize.core.contract import Contract, Schema, ToolKind
from deputize.core.servers import COMPLETE, GET_PROMPT, READ_RESOURCE, Definition, Kind, kind_of, name_in
from deputize.core.settings import McpServer
from deputize.core.uris import LONGEST_URI

_NAMED: Final = {"type": "string", "minLength": 1, "maxLength": 128}
_TEXTS: Final = {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 100}
_ITEMS: Final = {"type": "array", "items": {"type": "object"}}
_URI: Final = {"type": "string", "minLength": 1, "maxLength": LONGEST_URI}


class _Read(NamedTuple):
    word: str
    title: str
    description: str
    takes: Schema
    required: tuple[str, ...]
    gives: Schema
    gives_always: str
    example: dict[str, Any]


METHODS: Final[dict[str, _Read]] = {
    READ_RESOURCE: _Read(
        word="read_resource",
        title="Read a resource",
        description="Read one resource of the server {server}, by its address.",
        takes={"uri": {**_URI, "description": "The resource's address.", "x-policy": "resource_uri"}},
        required=("uri",),
        gives={"contents": _ITEMS},
        gives_always="contents",
        example={"uri": "file:///readme.md"},
    ),
    GET_PROMPT: _Read(
        word="get_prompt",
        title="Get a prompt",
        description="Get one prompt of the server {server}, with its arguments filled in.",
        takes={
            "name": {**_NAMED, "description": "The prompt's name at its server.", "x-policy": "prompt_name"},
            "arguments": {**_TEXTS, "description": "The prompt's arguments by name, each a text."},
        },
        required=("name",),
        gives={"description": {"type": "string"}, "messages": _ITEMS},
        gives_always="messages",
        example={"name": "summary"},
    ),
    COMPLETE: _Read(
        word="complete",
        title="Complete an argument",
        description="Ask the server {server} how an argument of a prompt or of a resource template may go on.",
        takes={
            "ref": {
                "type": "object",
                "description": "The prompt by name, or the template by its address.",
                "properties": {
                    "type": {"type": "string", "enum": ["ref/prompt", "ref/resource"]},
                    "name": _NAMED,
                    "uri": _URI,
                },
                "required": ["type"],
                "additionalProperties": False,
            },
            "argument": {
                "type": "object",
                "description": "The argument and what is known of its value.",
                "properties": {"name": _NAMED, "value": {"type": "string", "maxLength": 4096}},
                "required": ["name", "value"],
                "additionalProperties": False,
            },
            "context": {
                "type": "object",
                "description": "What other arguments are already.",
                "properties": {"arguments": _TEXTS},
                "additionalProperties": False,
            },
        },
        required=("ref", "argument"),
        gives={"completion": {"type": "object"}},
        gives_always="completion",
        example={"ref": {"type": "ref/prompt", "name": "summary"}, "argument": {"name": "city", "value": "Par"}},
    ),
}


def item_served(server: McpServer, item: str) -> bool:
    """Whether the operator serves what this item is of. Instructions are always looked at."""
    kind, name = kind_of(item), name_in(item)
    match kind:
        case None:
            return True
        case Kind.TOOL:
            return served(server, name)
        case Kind.PROMPT:
            return any_glob(server.prompts, name)
        case Kind.METHOD if name == GET_PROMPT:
            return bool(server.prompts)
        case Kind.METHOD if name == COMPLETE:
            return bool(server.prompts or server.resources)
        case Kind.METHOD:
            return name == READ_RESOURCE and bool(server.resources)
        case _:
            return any_glob(server.resources, name)


def word_of(method: str, taken: Collection[str]) -> str:
    """What the contract of a method is called. A tool of the server that has the name already keeps it."""
    word, number = METHODS[method].word, 1
    while word in taken:
        number += 1
        word = f"{METHODS[method].word}_{number}"
    return word


def contract_of(server: McpServer, definition: Definition, *, word: str, version: str) -> Contract:
    """The contract of one method. Raises `NotAdmitted`, as every contract might."""
    read = METHODS[definition.name]
    fields: dict[str, Any] = {
        "namespace": server.name,
        "name": word,
        "version": version,
        "title": read.title,
        "description": read.description.format(server=server.name),
        "kind": ToolKind.MCP_TOOL,
        "handler": {"driver": "mcp", "target": f"{server.name}:{definition.name}", "pin": definition.digest},
        "input_schema": {
            "type": "object",
            "properties": read.takes,
            "required": list(read.required),
            "additionalProperties": False,
        },
        "output_schema": {"type": "object", "properties": read.gives, "required": [read.gives_always]},
        "examples": (read.example,),
        "external_mappings": {"mcp": {"method": definition.name}},
        **read_by_operator(server, read.word),
    }
    contract = Contract.model_validate(fields)
    admit(contract)
    return contract
