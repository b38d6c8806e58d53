"""Tools of MCP servers: a definition as a server declares it becomes a contract as the operator describes it.

What a tool does, who may call it and with what credential is the operator's word, from `[[servers]]`; of the server
come its name, its text and its schemas. Its annotations are kept to be looked at, and believed by nobody.

Above: `lifecycle/servers/`, which registers what is made here. Below: `server_schemas.py`, `core/servers.py`; nothing
here speaks to a server.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from deputize.catalog import versions
from deputize.catalog.admission import LONGEST_OUTWARD, admit, refusal
from deputize.catalog.importers.declaration import reasons_from
from deputize.catalog.importers.examples import example_call
from deputize.catalog.importers.server_schemas import Taken, input_of, output_of
from deputize.catalog.schemas import MAX_DEPTH, BadSchema, compile_schema, depth
from deputize.catalog.strictness import Reason
from deputize.core.contract import Contract, Effects, Schema, TimeoutClass, ToolKind, Upstream
from deputize.core.servers import Definition
from deputize.core.settings import McpServer

FIRST_VERSION = "1.0.0"
_LONGEST_WORD = 48
_LONGEST_TITLE = 255
_LONGEST_DESCRIPTION = 2000
_SHORTEST_DESCRIPTION = 10
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_APART = re.compile(r"[^a-z0-9]+")
# What a server says of a tool that nobody here goes by.
_BESIDE = ("title", "annotations", "execution")


def served(server: McpServer, name: str) -> bool:
    """Whether the operator serves this tool of the server; `name` as the server spells it."""
    return any_glob(server.tools, name)


def named(server: McpServer, names: Collection[str], taken: Mapping[str, str]) -> dict[str, str]:
    """The word each tool is registered under, by the name its server gives it. `taken` holds, in the same way, what is
    registered already, and stays as it is: a tool never moves to another word. Of several that would have the same one,
    all but one get a number, the same ones however the server lists them.
    """
    given = {name: taken[name] for name in names if name in taken}
    used = set(taken.values())
    room = min(_LONGEST_WORD, LONGEST_OUTWARD - len("__") - len(server.name))
    new = sorted((name for name in set(names) if name not in taken), key=lambda name: (_word(name, room) != name, name))
    for name in new:
        word, number = _word(name, room), 1
        while word in used:
            number += 1
            word = _word(name, room - len(f"_{number}")) + f"_{number}"
        given[name] = word
        used.add(word)
    return given


def imported(server: McpServer, definition: Definition, *, word: str, version: str = FIRST_VERSION) -> Contract:
    """The contract of one tool, pinned to its definition, or `NotAdmitted` with every reason why there is none.

    `word` is what `named` says; after an accepted change `version` is what `next_version` says.
    """
    name = f"{server.name}.{word}"
    faults = list(_shape_faults(definition.said))
    if faults:
        raise refusal(name, version, faults)
    takes, gives = input_of(definition.said["inputSchema"]), output_of(definition.said.get("outputSchema"))
    fields = {
        **_told_by_server(server, definition, takes, gives),
        **_told_by_operator(server, definition.name, _effects(server, definition.name)),
        "namespace": server.name,
        "name": word,
        "version": version,
    }
    try:
        contract = Contract.model_validate(fields)
    except ValidationError as error:
        raise refusal(name, version, list(reasons_from(error))) from error
    admit(contract)
    return contract


def next_version(version: str) -> str:
    """The version of a changed definition: one major up, for nobody can tell what the change means to a caller."""
    return f"{versions.parse(version).major + 1}.0.0"


def scopes_of(server: McpServer) -> tuple[str, ...]:
    """Every scope that some tool of the server asks of its callers."""
    return server.scopes or (_write_scope(server),)


def _told_by_server(server: McpServer, definition: Definition, takes: Taken, gives: Taken) -> dict[str, Any]:
    said = definition.said
    beside = {key: said[key] for key in _BESIDE if key in said}
    unenforced = [*takes.unenforced, *gives.unenforced]
    example = _example(takes.schema)
    return {
        "title": _title(said)[:_LONGEST_TITLE],
        "description": _description(server, definition),
        "kind": ToolKind.MCP_TOOL,
        "handler": {"driver": "mcp", "target": f"{server.name}/{definition.name}", "pin": definition.digest},
        "input_schema": takes.schema,
        "output_schema": gives.schema,
        "examples": () if example is None else (example,),
        "external_mappings": {
            "mcp": {"tool": definition.name, **beside, **({"unenforced": unenforced} if unenforced else {})}
        },
    }


def read_by_operator(server: McpServer, name: str) -> dict[str, Any]:
    """What the operator says of something that can only read."""
    return _told_by_operator(server, name, Effects.READ)


def any_glob(globs: tuple[str, ...], name: str) -> bool:
    return any(fnmatchcase(name, each) for each in globs)


def _told_by_operator(server: McpServer, name: str, effects: Effects) -> dict[str, Any]:
    reads = effects is Effects.READ
    slow = any_glob(server.slow, name)
    repeatable = Upstream.DEDUPLICATES if any_glob(server.repeatable, name) else Upstream.CANNOT
    # Nobody said what exactly is changed, so it is all of the server.
    touched = {"resource": server.name, "op": "update" if effects is Effects.WRITE else "delete", "scope": "*"}
    return {
        "effects": effects,
        "resources": () if reads else (touched,),
        "auth": {
            "scopes": server.scopes if reads else scopes_of(server),
            "credential": server.credential,
            "secret": server.secret if server.credential == "vault" else None,
            "audience": server.audience if server.credential == "delegated" else None,
        },
        "timeout": {"timeout_class": TimeoutClass.LONG_RUNNING if slow else TimeoutClass.STANDARD},
        "idempotency": {"upstream": Upstream.IDEMPOTENT if reads else repeatable},
        "observability": {"cost_category": "api"},
        "external_service": server.name,
        "provider": server.name,
    }


def _effects(server: McpServer, name: str) -> Effects:
    """As the operator says; of two things said, the worse, and of nothing said, the worst."""
    if any_glob(server.writes, name):
        return Effects.WRITE
    return Effects.READ if any_glob(server.reads, name) else Effects.DESTRUCTIVE


def _write_scope(server: McpServer) -> str:
    return f"{server.name}:write"


def _word(name: str, room: int) -> str:
    """The name in the spelling of this house: `getUser`, `get-user` and `issues/get` become words and underscores."""
    apart = _APART.sub("_", _HUMP.sub("_", name).lower()).strip("_")
    if not apart[:1].isalpha():
        apart = f"tool_{apart}".strip("_")
    return apart[:room].strip("_")


def _title(said: Mapping[str, Any]) -> str:
    annotations = said.get("annotations")
    titles = (said.get("title"), annotations.get("title") if isinstance(annotations, dict) else None)
    return next((each for each in titles if isinstance(each, str) and each.strip()), "")


def _description(server: McpServer, definition: Definition) -> str:
    """The server's text, or a plain sentence; what is over the most that a contract says is left out."""
    told = definition.said.get("description")
    text = (told if isinstance(told, str) else "").strip() or _title(definition.said).strip()
    whose = f"The tool {definition.name} of the server {server.name}."
    if len(text) < _SHORTEST_DESCRIPTION:
        text = f"{text}. {whose}" if text else whose
    return text if len(text) <= _LONGEST_DESCRIPTION else text[: _LONGEST_DESCRIPTION - 1] + "…"


def _example(schema: Schema) -> dict[str, Any] | None:
    """A call that works, if the schema's own examples make one up; none is invented."""
    try:
        made = example_call(schema)
        return made if made is not None and compile_schema(schema).is_valid(made) else None
    except (BadSchema, TypeError, AttributeError, LookupError):
        return None  # the schema is no schema, which admission says better


def _shape_faults(said: Mapping[str, Any]) -> Iterator[Reason]:
    """What must hold before anything of a definition can be read at all."""
    for key in ("inputSchema", "outputSchema"):
        schema = said.get(key)
        if schema is None and key == "outputSchema":
            continue
        if not isinstance(schema, dict):
            yield _fault(key, "is no schema", "have the server declare a JSON Schema of an object")
        elif depth(schema) > 2 * MAX_DEPTH:
            yield _fault(key, f"nests deeper than {2 * MAX_DEPTH} levels", "have the server move parts to $defs")


def _fault(path: str, reason: str, fix: str) -> Reason:
    return Reason(conjunct="schemas_valid", path=f"/{path}", reason=reason, fix=fix)
