"""Negotiate in another process, because the agent's schema and the tool's decide together how long that takes: 2 KB of
patterns took 10 s to compile, with the interpreter locked meanwhile.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from deputize.catalog.compatibility.negotiation import Match, MissingPart, judge_match, list_missing_parts
from deputize.catalog.importers.manifest_job import JobRunner
from deputize.catalog.schema_rules import check_schema
from deputize.catalog.schemas import strip_internal
from deputize.catalog.tool_entry import ToolVersion
from deputize.core.contract.contract import Effects
from deputize.core.contract.expectation import AgentExpectation, ExpectedSide
from deputize.core.errors import MalformedRequest

# Of a longer range, only the best versions are compared.
MAX_VERSIONS: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionMatch:
    """How well one version matches, and the parts that it does not offer."""

    version: str
    match: Match
    missing_parts: tuple[MissingPart, ...]


async def match_versions(
    expectation: AgentExpectation, candidates: Sequence[ToolVersion], run_job: JobRunner
) -> list[VersionMatch]:
    """Compare the candidates, the best version first, until one matches in full.

    Raises `MalformedRequest` if a schema of the expectation is not valid.
    """
    candidates = candidates[:MAX_VERSIONS]
    lines = [await asyncio.to_thread(orjson.dumps, expectation), *(each.raw for each in candidates)]
    reply = await run_job(match_job, b"\n".join(lines))
    if reply is None:
        return [_build_incomparable_match(each.version) for each in candidates[:1]]
    answer = orjson.loads(reply)
    if "invalid" in answer:
        raise MalformedRequest(answer["invalid"], details={"field": answer["field"]})
    return [
        VersionMatch(
            version=candidate.version,
            match=Match(match),
            missing_parts=tuple(MissingPart(**each) for each in missing_parts),
        )
        for candidate, (match, missing_parts) in zip(candidates, answer["matches"], strict=False)
    ]


def match_job(payload: bytes) -> bytes:
    """Compare in another process: the expectation and the registered contracts, one to a line."""
    first, *contracts = payload.split(b"\n")
    fields = orjson.loads(first)
    for name in ("input", "output"):
        schema = (fields[name] or {}).get("schema")
        for fault in check_schema(f"{name}/schema", schema or {}):
            return orjson.dumps({"invalid": f"{fault.path} {fault.reason}; {fault.fix}", "field": name})
    expectation = _parse_expectation(fields)
    matches: list[tuple[Match, list[dict[str, Any]]]] = []
    for raw in contracts:
        contract = orjson.loads(raw)
        missing_parts = list_missing_parts(
            expectation,
            input_schema=strip_internal(contract["input_schema"]),
            output_schema=contract["output_schema"],
            effects=Effects(contract["effects"]),
        )
        match = judge_match(missing_parts)
        matches.append((match, [asdict(each) for each in missing_parts]))
        if match is Match.FULL:
            break
    return orjson.dumps({"matches": matches})


def _parse_expectation(fields: dict[str, Any]) -> AgentExpectation:
    return AgentExpectation(
        input=_parse_side(fields["input"]),
        output=_parse_side(fields["output"]),
        effects=None if fields["effects"] is None else Effects(fields["effects"]),
    )


def _parse_side(side: dict[str, Any] | None) -> ExpectedSide | None:
    return None if side is None else ExpectedSide(**side)


def _build_incomparable_match(version: str) -> VersionMatch:
    reason = "cannot be compared in time; simplify the schemas, or try again if many are compared now"
    part = MissingPart(path="", is_required=True, reason=reason)
    return VersionMatch(version=version, match=Match.INCOMPATIBLE, missing_parts=(part,))
