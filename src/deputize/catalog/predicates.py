"""Check predicates of contracts, and results against them, in a process of their own if that may take long.

Schemas of predicates cost as much as others, and comparisons look at each value of the document once more.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import orjson

from deputize.catalog.schema_cost import SchemaCost, measure_schema
from deputize.catalog.schema_rules import Reason, check_schema
from deputize.catalog.schemas import Validator, compile_schema
from deputize.catalog.validation_job import JobRunner, is_costly_document
from deputize.core.canonical import canonicalize
from deputize.core.comparisons import Comparison, InvalidComparison, compute_change, parse_comparison
from deputize.core.contract.predicates import Predicate
from deputize.core.json_values import run_for_value

# A comparison takes up to 3 µs for each value of the document: as long as so many evaluations of a schema.
_EVALUATIONS_PER_COMPARISON: Final = 40

_CompiledCheck = tuple[Validator, tuple[Comparison, ...]]


def check_predicate(place: int, check: Predicate, *, reads_state: bool) -> Iterator[Reason]:
    """Check that a predicate's schema compiles, that its comparisons can be read, and that it has one or the other."""
    yield from check_schema(f"predicates/{place}/holds", check.holds)
    path = f"/predicates/{place}/compare"
    for number, text in enumerate(check.compare):
        try:
            comparison = parse_comparison(text)
        except InvalidComparison as error:
            fix = "write it as in count(/output/items) <= /input/limit"
            yield Reason(conjunct="schemas_valid", path=f"{path}/{number}", reason=str(error), fix=fix)
            continue
        if comparison.compares_state and not reads_state:
            reason, fix = (
                "compares the state, which the tool does not show",
                "add read_state=, a function that returns it",
            )
            yield Reason(conjunct="schemas_valid", path=f"{path}/{number}", reason=reason, fix=fix)
    if not check.holds and not check.compare:
        fix = "set holds to a JSON Schema, or list comparisons in compare"
        yield Reason(conjunct="schemas_valid", path=path, reason="the predicate checks nothing", fix=fix)


class CompiledPredicates:
    """The predicates of one contract, compiled, and what checking a result against all of them can cost."""

    __slots__ = ("_checks", "_compiled_checks", "_cost")

    def __init__(self, checks: Sequence[Predicate]) -> None:
        self._checks = checks
        self._compiled_checks = tuple(_compile_check(each.holds, each.compare) for each in checks)
        costs = [measure_schema(each.holds) for each in checks]
        comparison_count = sum(len(each.compare) for each in checks)
        self._cost = SchemaCost(
            pattern_cost=sum(each.pattern_cost for each in costs),
            evaluations=sum(each.evaluations for each in costs) + comparison_count * _EVALUATIONS_PER_COMPARISON,
            comparisons=sum(each.comparisons for each in costs),
            is_exponential=any(each.is_exponential for each in costs),
        )

    async def find_failed(
        self, arguments: Mapping[str, Any], output: Any, state: Mapping[str, Any] | None, run_job: JobRunner
    ) -> tuple[Predicate, ...] | None:
        """Find the predicates that a result does not satisfy: here, in a thread or in another process, by their cost.

        `state` has `before` and `after`. With None, comparisons of the state are left out; without members, they fail.
        The answer is None if it takes too long.
        """
        document = {"input": arguments, "output": output, **(state or {})}
        canonical = await run_for_value(document, canonicalize, document)
        has_state = state is not None
        if is_costly_document(self._cost, canonical):
            reply = await run_job(find_failed_job, self._build_payload(canonical, has_state=has_state))
            if reply is None:
                return None
            places = orjson.loads(reply)
        else:
            places = await run_for_value(
                document, _find_failed_places, self._compiled_checks, document, has_state=has_state
            )
        return tuple(self._checks[place] for place in places)

    def _build_payload(self, canonical: bytes, *, has_state: bool) -> bytes:
        checks = orjson.dumps([(each.holds, each.compare) for each in self._checks])
        return orjson.dumps({"checks": checks.decode(), "document": canonical.decode(), "has_state": has_state})


def find_failed_job(payload: bytes) -> bytes:
    """Find the places of the predicates that fail; this runs in the other process."""
    request = orjson.loads(payload)
    document = orjson.loads(request["document"])
    return orjson.dumps(
        _find_failed_places(_compile_checks(request["checks"]), document, has_state=request["has_state"])
    )


def _find_failed_places(checks: Sequence[_CompiledCheck], document: dict[str, Any], *, has_state: bool) -> list[int]:
    if "before" in document:
        document = {**document, "change": compute_change(document["before"], document["after"])}
    return [
        place
        for place, (validator, comparisons) in enumerate(checks)
        if not validator.is_valid(document)
        or not all(each.holds(document) for each in comparisons if has_state or not each.compares_state)
    ]


@lru_cache(maxsize=8)
def _compile_checks(text: str) -> tuple[_CompiledCheck, ...]:
    return tuple(_compile_check(holds, compare) for holds, compare in orjson.loads(text))


def _compile_check(holds: dict[str, Any], compare: Sequence[str]) -> _CompiledCheck:
    return compile_schema(holds), tuple(map(parse_comparison, compare))
