"""Pairs of schemas, generated and published ones with changes, and what the checker says about each new version.

Two judges that share nothing with the checker look for a value that the old schema allows and the new one refuses: one
draws values along the old schema, the other lists the small models of both. Changes that only widen a schema, by
construction, must not be called breaks.
"""

import asyncio
import random
import statistics
from collections.abc import Iterator
from itertools import chain

from deputize.catalog.compatibility.changes import ChangeLevel
from deputize.catalog.compatibility.schema_changes import Direction, compare_schemas
from deputize.core.contract.contract import Schema
from proofs.compatibility.judge import Checker, Findings, judge_pair
from proofs.compatibility.schema_pairs import (
    SchemaPair,
    build_generated_pairs,
    build_real_pairs,
    load_real_schemas,
)
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox
from proofs.variants import compatibility_names_of_references, compatibility_required_ignored

NAME = "compatibility"
PROMISE = "A new version that breaks its callers is never called compatible, and few others are called breaks."

SEED = 20261116
_SHOWN = 3
_CONTROLS = {
    "required properties are not compared": compatibility_required_ignored.open_checker,
    "references are compared by their names": compatibility_names_of_references.open_checker,
}


async def prove(sandbox: Sandbox) -> Verdict:
    published_count = sandbox.pick_size(quick=600, full=16_000)
    generated_count = sandbox.pick_size(quick=700, full=9_000)
    rng = random.Random(SEED)
    pairs = chain(
        build_real_pairs(_pick_schemas(rng), published_count, rng), build_generated_pairs(generated_count, rng)
    )
    findings = await asyncio.to_thread(judge_pairs, pairs, decide_level)
    sandbox.log(f"{findings.pairs} pairs, {findings.breaks_with_a_value} with a value that shows a break")
    controls = {}
    for name, open_checker in _CONTROLS.items():
        with open_checker():
            planted = build_generated_pairs(sandbox.pick_size(quick=200, full=2_000), random.Random(SEED))
            controls[name] = bool(
                (await asyncio.to_thread(judge_pairs, planted, decide_level)).breaks_called_compatible
            )
    wrong = [*findings.breaks_called_compatible, *findings.additions_called_patches, *findings.widened_and_broken]
    return Verdict(
        figures={
            "pairs": findings.pairs,
            "published_pairs": findings.published_pairs,
            "breaks_called_compatible": len(findings.breaks_called_compatible),
            "additions_called_patches": len(findings.additions_called_patches),
            "widened_and_broken": len(findings.widened_and_broken),
            "breaks_with_a_value": findings.breaks_with_a_value,
            "breaks_without_a_value": findings.undecided_breaks,
            "widened_pairs": findings.widened_pairs,
            "false_alarm_share": round(len(findings.false_alarms) / max(1, findings.widened_pairs), 4),
            "p50_ms": round(statistics.median(findings.milliseconds), 3),
            "p99_ms": round(statistics.quantiles(findings.milliseconds, n=100)[98], 3),
        },
        controls=controls,
        notes=[*wrong[:_SHOWN], *(f"false alarm: {each}" for each in findings.false_alarms[:_SHOWN])],
    )


def _pick_schemas(rng: random.Random) -> list[Schema]:
    schemas = load_real_schemas()
    rng.shuffle(schemas)
    return schemas


def decide_level(old: Schema, new: Schema) -> str:
    """Decide what a new schema of an input is to callers."""
    changes = compare_schemas("", old, new, Direction.INPUT)
    return max((each.level for each in changes), default=ChangeLevel.PATCH).label


def judge_pairs(pairs: Iterator[SchemaPair], checker: Checker) -> Findings:
    findings, rng = Findings(), random.Random(SEED)
    for pair in pairs:
        judge_pair(pair, checker, rng, findings)
    return findings
