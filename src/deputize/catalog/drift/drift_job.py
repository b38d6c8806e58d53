"""Judge what a server declares without holding up calls: large texts are looked through in another process.

`flag_job` runs in that process (`execute/job_processes.py`), whose time and memory are limited. The server decides how
much there is to look through, and what it costs.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Final

import orjson

from deputize.catalog.drift.flags import DefinitionIndex, Flag, FlagCode, KnownDefinition
from deputize.catalog.drift.verdicts import (
    DriftVerdict,
    Pin,
    UnpinnedTexts,
    build_verdicts,
    flag_texts,
    judge_definitions,
    list_own_names,
    list_unpinned_texts,
)
from deputize.catalog.importers.manifest_job import JobRunner
from deputize.core.errors import UpstreamUnavailable
from deputize.core.mcp.servers import Definition, DefinitionKind, DiscoveredServer
from deputize.core.settings import McpServerSettings

# Looking through so many bytes takes less than 20 ms.
_SMALL_BYTES: Final = 8_192


async def judge_off_loop(
    server: McpServerSettings,
    pins: Mapping[str, Pin],
    discovery: DiscoveredServer,
    known_definitions: Collection[KnownDefinition],
    run_job: JobRunner,
) -> tuple[DriftVerdict, ...]:
    """Judge as `judge_definitions` does: little text in a thread, much text in another process."""
    payload = await asyncio.to_thread(_build_payload, server, pins, discovery, known_definitions)
    if len(payload) <= _SMALL_BYTES:
        return await asyncio.to_thread(judge_definitions, server, pins, discovery, known_definitions)
    reply = await run_job(flag_job, payload)
    if reply is None:
        raise UpstreamUnavailable(
            f"the definitions of {server.name} take too long to look through, or too many others are waiting",
            nothing_happened=True,
        )
    return await asyncio.to_thread(lambda: build_verdicts(server, pins, discovery, _parse_flags(reply)))


def flag_job(payload: bytes) -> bytes:
    """Find the flags of what a server declares; reply with them by item."""
    request = orjson.loads(payload)
    texts = UnpinnedTexts(
        definitions=tuple(
            Definition(name=name, declaration=declaration, digest=digest, kind=DefinitionKind(kind))
            for kind, name, declaration, digest in request["definitions"]
        ),
        instructions=request["instructions"],
    )
    index = DefinitionIndex(
        [
            KnownDefinition(server=server, name=name, kind=DefinitionKind(kind))
            for server, name, kind in request["known"]
        ]
    )
    flags_by_item = flag_texts(request["server"], texts, index)
    return orjson.dumps({item: [asdict(each) for each in flags] for item, flags in flags_by_item.items()})


def _build_payload(
    server: McpServerSettings,
    pins: Mapping[str, Pin],
    discovery: DiscoveredServer,
    known_definitions: Collection[KnownDefinition],
) -> bytes:
    texts = list_unpinned_texts(server, pins, discovery)
    if texts.definitions or texts.instructions:
        known_definitions = [*known_definitions, *list_own_names(server, discovery)]
    else:
        known_definitions = []
    return orjson.dumps(
        {
            "server": server.name,
            "definitions": [(each.kind, each.name, each.declaration, each.digest) for each in texts.definitions],
            "instructions": texts.instructions,
            "known": [(each.server, each.name, each.kind) for each in known_definitions],
        }
    )


def _parse_flags(reply: bytes) -> dict[str, tuple[Flag, ...]]:
    return {
        item: tuple(Flag(**{**each, "code": FlagCode(each["code"])}) for each in flags)
        for item, flags in orjson.loads(reply).items()
    }
