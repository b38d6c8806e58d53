"""Compare what a read says with what other tools said about the same thing, by the rules in `[[consistency]]`.

Only values that the same user saw are compared, so that no one learns through a rule what another user saw. A
disagreement that the rule resolves becomes a warning; one that it does not resolve fails the call. A value that cannot
be compared, because the database does not answer, is not released: the call only reads, and can be repeated.
"""

import asyncio
import hmac
from collections.abc import Iterator, Mapping
from typing import Any, Final

import asyncpg
import orjson
import structlog

from deputize.core.canonical import canonicalize
from deputize.core.contract.contract import MutationClass
from deputize.core.errors import SourcesDisagree, Unavailable
from deputize.core.json_values import is_large_value
from deputize.core.settings.consistency import ConsistencyRule
from deputize.core.value_types import frozen
from deputize.govern.consistency_rules import Disagreement, ObservedValue, RuleSource, judge_sources
from deputize.lifecycle.phases import Executed
from deputize.lifecycle.runtime import Runtime
from deputize.store.consistency_values import ValueKey
from deputize.store.keys import KeySet
from deputize.store.pool import CONNECTION_ERRORS

log = structlog.get_logger(__name__)

_MAX_VALUE_BYTES: Final = 1024
# The least time to compare a result that came just before the deadline.
_MIN_SECONDS: Final = 1.0
_SEAL_PURPOSE: Final = "observed value"


@frozen
class _Statement:
    """What a call says about a thing, under one rule."""

    rule: ConsistencyRule
    entity: str
    canonical_value: bytes


async def compare_sources(runtime: Runtime, executed: Executed, payload: Any) -> tuple[str, ...]:
    """Compare a result with what the other sources said; return the warnings, or raise what a rule cannot resolve."""
    validated = executed.validated
    if validated.contract.mutation_class is not MutationClass.READ:
        return ()
    seconds = max(validated.deadline.remaining_seconds(runtime.clock.monotonic()), _MIN_SECONDS)
    ends_at = asyncio.get_running_loop().time() + seconds
    warnings: list[str] = []
    problem: SourcesDisagree | None = None
    for statement in _list_statements(runtime, executed, payload):
        try:
            async with asyncio.timeout_at(ends_at):
                disagreement = await _compare_statement(runtime, executed, statement)
        except CONNECTION_ERRORS as error:
            log.warning("sources_not_compared", rule=statement.rule.name, reason=type(error).__name__)
            raise Unavailable(
                f"the result of {validated.tool.name} could not be compared with other sources, as the rule "
                f"{statement.rule.name} requires: the database did not answer",
                advice="Wait, then call again: the tool only reads.",
                retry_after_ms=1000,
            ) from error
        if disagreement is None:
            continue
        if disagreement.believed_source is None:
            problem = problem or _build_problem(statement.rule, disagreement)
        else:
            warnings.append(
                _describe_belief(statement.rule, disagreement, disagreement.believed_source, _get_id(executed))
            )
    if problem is not None:
        raise problem
    return tuple(warnings)


def _list_statements(runtime: Runtime, executed: Executed, payload: Any) -> Iterator[_Statement]:
    validated = executed.validated
    tool = validated.tool.name
    document: Mapping[str, Any] = {"input": validated.call_input, "output": payload}
    for source in runtime.source_rules.find_sources(validated.call.tenant, tool):
        entity, value = source.read_entity(document), source.read_value(document)
        if entity is None or value is None:
            continue
        canonical_value = b"" if is_large_value(value) else canonicalize({"value": value})
        if 0 < len(canonical_value) <= _MAX_VALUE_BYTES:
            yield _Statement(rule=source.rule, entity=entity, canonical_value=canonical_value)
        else:
            _report_size(runtime, source, tool)


def _report_size(runtime: Runtime, source: RuleSource, tool: str) -> None:
    if runtime.source_rules.should_report_size(source.rule.name, tool):
        log.warning(
            "value_not_compared", rule=source.rule.name, tool=tool, reason=f"more than {_MAX_VALUE_BYTES} bytes"
        )


async def _compare_statement(runtime: Runtime, executed: Executed, statement: _Statement) -> Disagreement | None:
    """Store what the call says, and judge it by what the other sources said to the same user."""
    validated, rule = executed.validated, statement.rule
    caller, contract, call_id = validated.call.caller, validated.contract, _get_id(executed)
    keys = await runtime.keys.get(caller.tenant)
    key = ValueKey(
        tenant=caller.tenant,
        # The gateway itself, which reads the status of calls, has no pseudonym.
        subject=caller.pseudonyms[0] if caller.pseudonyms else "",
        rule=rule.name,
        entity=_compute_entity_digest(keys, statement),
    )
    rows = await runtime.consistency_values.observe_value(
        key,
        tool=contract.full_name,
        authority_rank=contract.authority_rank or 0,
        call_id=call_id,
        sealed_value=keys.seal(call_id, f"{_SEAL_PURPOSE} {rule.name}", statement.canonical_value),
        within_seconds=rule.within_seconds,
    )
    source_names = {each.tool for each in rule.sources}
    values = {row["tool"]: _open_value(keys, rule, row) for row in rows if row["tool"] in source_names}
    own = values.pop(contract.full_name)
    disagreement = judge_sources(rule, own, list(values.values()))
    if disagreement is not None:
        await _report_disagreement(runtime, key, rule, disagreement)
    return disagreement


def _open_value(keys: KeySet, rule: ConsistencyRule, row: asyncpg.Record) -> ObservedValue:
    call_id = str(row["call_id"])
    return ObservedValue(
        tool=row["tool"],
        authority_rank=row["authority_rank"],
        call_id=call_id,
        seen_at=row["seen_at"],
        value=orjson.loads(keys.unseal(call_id, f"{_SEAL_PURPOSE} {rule.name}", row["sealed"]))["value"],
    )


async def _report_disagreement(
    runtime: Runtime, key: ValueKey, rule: ConsistencyRule, disagreement: Disagreement
) -> None:
    """Count and log a disagreement, and record one that is not resolved, so that owners are told."""
    sources, believed_source = disagreement.sources, disagreement.believed_source
    runtime.metrics.record_disagreement(rule.name, is_resolved=believed_source is not None)
    log.warning(
        "sources_disagree",
        tenant=key.tenant,
        rule=rule.name,
        sources=[each.to_json() for each in sources],
        believed=None if believed_source is None else believed_source.tool,
    )
    if believed_source is None:
        await runtime.consistency_values.record_disagreement(
            key,
            tools=[each.tool for each in sources],
            call_ids=[each.call_id for each in sources],
            within_seconds=rule.within_seconds,
        )


def _compute_entity_digest(keys: KeySet, statement: _Statement) -> bytes:
    """Compute a digest of the thing that reveals nothing of it without the tenant's key."""
    text = f"observed entity\0{statement.rule.name}\0{statement.entity}"
    return hmac.digest(keys.records_key, text.encode(errors="surrogatepass"), "sha256")


def _describe_belief(rule: ConsistencyRule, disagreement: Disagreement, source: ObservedValue, own_id: str) -> str:
    """Describe which source is believed, which ones differ, and what the caller should do."""
    differing_sources = disagreement.differing_sources
    names = " and ".join(each.describe() for each in differing_sources)
    text = (
        f"sources disagree (rule {rule.name}): {source.describe()} is believed by {rule.resolution}; "
        f"{names} {'say' if len(differing_sources) > 1 else 'says'} something else"
    )
    is_own_different = any(each.call_id == own_id for each in differing_sources)
    return f"{text}. Do not rely on this result, but on that of the believed call" if is_own_different else text


def _build_problem(rule: ConsistencyRule, disagreement: Disagreement) -> SourcesDisagree:
    sources = disagreement.sources
    return SourcesDisagree(
        f"{' and '.join(each.describe() for each in sources)} returned different values for the same thing, and rule "
        f"{rule.name} ({rule.resolution}) does not decide which is right",
        details={
            "rule": rule.name,
            "resolution": rule.resolution,
            "within_seconds": rule.within_seconds,
            "sources": [each.to_json() for each in sources],
        },
    )


def _get_id(executed: Executed) -> str:
    return executed.call.call_id if executed.claim is None else executed.claim.call_id
