"""Check the predicates of a contract before it is admitted."""

from collections.abc import Iterator

from deputize.catalog.comparisons import InvalidComparison, parse_comparison
from deputize.catalog.schema_rules import Reason, check_schema
from deputize.core.contract.predicates import Predicate


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
